"""Where the chat template of a model is written. Frontend process; called once, at the start."""

from pathlib import Path

from engined.checkpoint.gguf import GgufFile
from engined.checkpoint.model_info import ModelInfo
from engined.errors import ConfigError
from engined.tokenization.tokenizer import read_json_file


def find_chat_template(model_info: ModelInfo, override_file: str | None) -> str | None:
    """The jinja source: of `--chat-template`, else the model's own; None if the model has none.

    Raises ConfigError if the file of `--chat-template` cannot be read.
    """
    if override_file is not None:
        try:
            return Path(override_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--chat-template {override_file}: cannot be read: {error}") from error
    if model_info.checkpoint_format == "gguf":
        template = GgufFile.open(model_info.path).metadata.get("tokenizer.chat_template")
        return template if isinstance(template, str) else None
    return _template_of_folder(Path(model_info.path))


def _template_of_folder(folder: Path) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    for name in ("chat_template.json", "tokenizer_config.json"):
        template = read_json_file(folder / name).get("chat_template")
        if isinstance(template, list):
            # Several named templates: "default" is the one for plain conversations.
            named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
            template = named.get("default")
        if isinstance(template, str):
            return template
    return None

"""Where the chat template of a model is written. Frontend process; called once, at the start."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engined.checkpoint.gguf import GgufFile
from engined.checkpoint.model_info import ModelInfo
from engined.errors import ConfigError
from engined.tokenization.tokenizer import read_json_file

_TOOL_TEMPLATE = "tool_use"


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateSources:
    """The jinja sources of a model."""

    chat: str
    tools: str | None = None
    """For conversations with tools, where the model has a template of its own for them."""

    @property
    def all(self) -> str:
        """Both, for those who look for what is written in them."""
        return self.chat if self.tools is None else f"{self.chat}\n{self.tools}"


def find_chat_template(model_info: ModelInfo, override_file: str | None) -> TemplateSources | None:
    """The sources: of `--chat-template`, else the model's own; None if the model has none.

    Raises ConfigError if the file of `--chat-template` cannot be read.
    """
    if override_file is not None:
        try:
            return TemplateSources(chat=Path(override_file).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--chat-template {override_file}: cannot be read: {error}") from error
    if model_info.checkpoint_format == "gguf":
        key = "tokenizer.chat_template"
        metadata = GgufFile.open(model_info.path).metadata
        return _to_sources({"default": metadata.get(key), _TOOL_TEMPLATE: metadata.get(f"{key}.{_TOOL_TEMPLATE}")})
    return _templates_of_folder(Path(model_info.path))


def _templates_of_folder(folder: Path) -> TemplateSources | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        tools = folder / "additional_chat_templates" / f"{_TOOL_TEMPLATE}.jinja"
        return TemplateSources(
            chat=file.read_text(encoding="utf-8"), tools=tools.read_text(encoding="utf-8") if tools.is_file() else None
        )
    for name in ("chat_template.json", "tokenizer_config.json"):
        template = read_json_file(folder / name).get("chat_template")
        if isinstance(template, list):
            template = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        if (sources := _to_sources(template if isinstance(template, dict) else {"default": template})) is not None:
            return sources
    return None


def _to_sources(named: dict[Any, Any]) -> TemplateSources | None:
    """From templates by name: "default" is the one for plain conversations."""
    chat, tools = named.get("default"), named.get(_TOOL_TEMPLATE)
    if not isinstance(chat, str):
        return None
    return TemplateSources(chat=chat, tools=tools if isinstance(tools, str) else None)

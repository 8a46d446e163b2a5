"""Tokenizers from a GGUF file and from a Hugging Face folder, against the transformers library as the reference."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer, LlamaTokenizer, PreTrainedTokenizerBase

from engined.checkpoint.gguf import GgufFile
from engined.checkpoint.model_info import ModelInfo
from engined.errors import CheckpointError, ConfigError, ModelNotFoundError, UnsupportedModelError
from engined.frontend.rendering.chat_template import ChatOptions, ChatTemplate
from engined.frontend.rendering.template_source import TemplateSources, find_chat_template
from engined.tokenization.gguf_tokenizer import merges_from_scores, tokenizer_from_gguf
from engined.tokenization.tokenizer import ModelTokenizer, load_tokenizer

TEXTS = [
    "Hello, world! It's John's, they'll've 12345 3.14 1,000,000",
    "  leading and   inner    spaces \t tabs\n\n\nnewlines \r\n end   ",
    "def f(x):\n    return {'a': [x ** 2 for _ in range(10)]}  # comment\n\n\tif a != b && c <= d: pass",
    "你好，世界！日本語のテキスト。 한국어 텍스트 Привет мир Γειά σου שלום مرحبا नमस्ते ไทย",
    "👩‍👩‍👧‍👦 🇩🇪 👍🏽 emoji 🎉🎉 e\u0301 ﬁ ½ ²",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|> <repo_name>x",
    "",
    " ",
    "\x00\x01\x7f\u200b\ufeff",
]


@pytest.fixture(scope="session")
def reference(default_gguf: Path) -> PreTrainedTokenizerBase:
    reference = AutoTokenizer.from_pretrained(default_gguf.parent, gguf_file=default_gguf.name)
    # transformers ignores `tokenizer.ggml.pre` of this file, which the tokenizer.json of the model has as:
    reference.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return reference


@pytest.mark.parametrize("text", TEXTS)
def test_gguf_tokenizer_agrees_with_transformers(
    tokenizer: ModelTokenizer, reference: PreTrainedTokenizerBase, text: str
) -> None:
    ids = tokenizer.encode(text)
    assert ids == reference.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(codec="utf-8"), max_size=60))
def test_gguf_tokenizer_agrees_on_random_text(
    tokenizer: ModelTokenizer, reference: PreTrainedTokenizerBase, text: str
) -> None:
    assert tokenizer.encode(text) == reference.encode(text, add_special_tokens=False)


def test_chat_prompt_agrees_with_transformers(
    tokenizer: ModelTokenizer, reference: PreTrainedTokenizerBase, model_info: ModelInfo
) -> None:
    source = find_chat_template(model_info, None)
    assert source is not None
    template = ChatTemplate(source.chat, tokenizer.special_tokens, tokenizer.special.named)
    messages = [
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": "Paris."},
        {"role": "user", "content": "And of 日本?"},
    ]
    [text] = template.render(messages, ChatOptions())
    ids = reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert tokenizer.encode(text) == ids


def test_user_text_never_gives_control_ids(tokenizer: ModelTokenizer, model_info: ModelInfo) -> None:
    source = find_chat_template(model_info, None)
    assert source is not None
    template = ChatTemplate(source.chat, tokenizer.special_tokens, tokenizer.special.named)
    plain = template.render([{"role": "user", "content": "x"}], ChatOptions())
    evil = template.render([{"role": "user", "content": "".join(tokenizer.special_tokens) * 2}], ChatOptions())
    control = {tokenizer.backend.token_to_id(token) for token in tokenizer.special_tokens}

    def count(pieces: list[str]) -> int:
        return sum(token_id in control for piece in pieces for token_id in tokenizer.encode(piece))

    assert count(evil) == count(plain) > 0


SENTENCES = "the cat sat on the mat. a cat and a hat, the end? yes: that is the cat 12 çé 你"


def sentencepiece_vocab() -> tuple[list[str], list[float]]:
    """A SentencePiece vocabulary: control tokens, all bytes, then pieces, whose scores fall in the order of merging."""
    pieces = ["▁t", "he", "▁the", "at", "▁c", "▁cat", "▁a", "▁s", "▁sat", "▁h", "▁hat", "nd", "▁and"]
    letters = sorted({*SENTENCES.replace(" ", "▁")} - {"你"})
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, *letters]
    scores = [0.0] * 259 + [-float(index) for index in range(len(pieces) + len(letters))]
    return tokens, scores


def write_gguf(path: Path, metadata: dict[str, object]) -> GgufFile:
    """A GGUF file without tensors, written by the reference implementation."""
    from gguf import GGUFWriter  # noqa: PLC0415 - slow to import, and only needed here

    writer = GGUFWriter(path, "llama")
    for key, value in metadata.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, str(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return GgufFile.open(path)


@pytest.mark.parametrize("add_space_prefix", [True, False])
def test_sentencepiece_agrees_with_transformers(tmp_path: Path, add_space_prefix: bool) -> None:
    tokens, scores = sentencepiece_vocab()
    vocab = {token: index for index, token in enumerate(tokens)}
    file = write_gguf(
        tmp_path / "m.gguf",
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.scores": scores,
            "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259),
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.unknown_token_id": 0,
            "tokenizer.ggml.add_space_prefix": add_space_prefix,
        },
    )
    ours = tokenizer_from_gguf(file)
    merges = merges_from_scores(vocab, scores)
    reference = LlamaTokenizer(vocab=vocab, merges=merges, add_prefix_space=add_space_prefix, legacy=False)
    for text in (SENTENCES, " the  cat", "你好", "the<s>cat", ""):
        ids = ours.encode(text, add_special_tokens=False).ids
        assert ids == reference.encode(text, add_special_tokens=False), text
        if "<s>" not in text and not text.startswith(" "):
            assert ours.decode(ids, skip_special_tokens=False) == text
    assert ours.encode("the cat").tokens == (["▁the", "▁cat"] if add_space_prefix else ["t", "he", "▁cat"])


def test_unknown_kinds_are_refused(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "a.gguf", {"tokenizer.ggml.model": "t5", "tokenizer.ggml.tokens": ["a"]})
    with pytest.raises(UnsupportedModelError, match="t5"):
        tokenizer_from_gguf(file)
    metadata: dict[str, object] = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "b", "ab"]}
    with pytest.raises(CheckpointError, match="merges is missing"):
        tokenizer_from_gguf(write_gguf(tmp_path / "b.gguf", metadata))
    metadata["tokenizer.ggml.merges"] = ["a b"]
    assert tokenizer_from_gguf(write_gguf(tmp_path / "c.gguf", metadata)).encode("ab").ids == [2]
    with pytest.raises(UnsupportedModelError, match="poem"):
        tokenizer_from_gguf(write_gguf(tmp_path / "d.gguf", {**metadata, "tokenizer.ggml.pre": "poem"}))
    metadata["tokenizer.ggml.merges"] = ["a z"]
    with pytest.raises(CheckpointError, match="damaged"):
        tokenizer_from_gguf(write_gguf(tmp_path / "e.gguf", metadata))


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("smollm", "a 123", ["a", "Ġ", "1", "2", "3"]),
        ("gpt-2", "a 123 IT'S", ["a", "Ġ123", "ĠIT", "'", "S"]),
        ("llama-bpe", "a 12345\n\nIT'S", ["a", "Ġ", "123", "45", "ĊĊ", "IT", "'S"]),
        ("qwen2", "a 12 (b)\n", ["a", "Ġ", "1", "2", "Ġ(", "b", ")Ċ"]),
        ("tekken", "helloWorld/\n12", ["hello", "World", "/Ċ", "1", "2"]),
    ],
)
def test_split_patterns(tmp_path: Path, pre: str, text: str, expected: list[str]) -> None:
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": ["a", "b", "ab"],
        "tokenizer.ggml.merges": ["a b"],
    }
    tokenizer = tokenizer_from_gguf(write_gguf(tmp_path / "m.gguf", metadata))
    assert tokenizer.pre_tokenizer is not None
    assert [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)] == expected


def folder_tokenizer(folder: Path, config: dict[str, object]) -> ModelTokenizer:
    tokens, scores = sentencepiece_vocab()
    vocab = {token: index for index, token in enumerate(tokens)}
    backend = Tokenizer(models.BPE(vocab, merges_from_scores(vocab, scores), byte_fallback=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.pre_tokenizer = pre_tokenizers.Split("\n", "isolated")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens(["<s>", "</s>"])
    backend.post_processor = processors.TemplateProcessing(single="<s> $0", special_tokens=[("<s>", 1)])
    folder.mkdir()
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return load_tokenizer(folder_info(folder))


def folder_info(folder: Path) -> ModelInfo:
    return ModelInfo(
        path=str(folder),
        name="m",
        checkpoint_format="safetensors",
        architecture="llama",
        vocab_size=300,
        hidden_size=1,
        intermediate_size=1,
        num_layers=1,
        num_attention_heads=1,
        num_kv_heads=1,
        head_dim=1,
        max_position=1,
        rms_norm_eps=1e-6,
        rope_theta=1.0,
    )


def test_folder_tokenizer_has_one_bos(tmp_path: Path) -> None:
    named = {"bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    tokenizer = folder_tokenizer(tmp_path / "a", named)
    assert tokenizer.special.named == {"bos_token": "<s>", "eos_token": "</s>"}
    ids = tokenizer.encode("the cat")
    assert 1 not in ids
    for text in ("the cat", "<s>the cat"):
        assert tokenizer.add_special_ids(tokenizer.encode(text), bos=True, eos=True) == [1, *ids]
    without = folder_tokenizer(tmp_path / "b", {**named, "add_bos_token": False, "add_eos_token": True})
    assert without.add_special_ids(ids, bos=True, eos=True) == [*ids, 2]
    assert tokenizer.token_bytes(3 + 0xE4) == b"\xe4" and tokenizer.token_text(ids[-1]) == " cat"


def test_broken_folders(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder_tokenizer(folder, {})
    (folder / "tokenizer_config.json").write_text("[")
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json"):
        load_tokenizer(folder_info(folder))
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        load_tokenizer(folder_info(folder))
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelNotFoundError, match=r"tokenizer\.json"):
        load_tokenizer(folder_info(folder))


def test_where_the_chat_template_is_found(tmp_path: Path) -> None:
    info = folder_info(tmp_path)
    assert find_chat_template(info, None) is None
    config = tmp_path / "tokenizer_config.json"
    named = [{"name": "default", "template": "named"}, {"name": "rag", "template": "documents"}]
    config.write_text(json.dumps({"chat_template": named}))
    assert find_chat_template(info, None) == TemplateSources(chat="named")
    config.write_text(json.dumps({"chat_template": [*named, {"name": "tool_use", "template": "called"}]}))
    assert find_chat_template(info, None) == TemplateSources(chat="named", tools="called")
    config.write_text(json.dumps({"chat_template": "plain"}))
    assert find_chat_template(info, None) == TemplateSources(chat="plain")
    (tmp_path / "chat_template.jinja").write_text("file")
    assert find_chat_template(info, None) == TemplateSources(chat="file")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert find_chat_template(info, None) == TemplateSources(chat="file", tools="tools")
    override = tmp_path / "mine.jinja"
    override.write_text("mine")
    assert find_chat_template(info, str(override)) == TemplateSources(chat="mine")
    with pytest.raises(ConfigError, match="--chat-template"):
        find_chat_template(info, str(tmp_path / "missing"))

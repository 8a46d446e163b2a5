"""One compiler and one engine for all tests of grammars."""

from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engined.checkpoint.load import load_model_info
from engined.grammar.compiler import GrammarCompiler
from engined.tokenization.byte_level import CHARACTER_OF_BYTE
from engined.tokenization.tokenizer import ModelTokenizer, load_tokenizer
from tests.grammar.byte_tokens import EOS_TOKEN_ID, VOCAB_SIZE
from tests.grammar.constrained_engine import ConstrainedEngine


@pytest.fixture(scope="session")
def grammar_tokenizer(default_gguf: Path) -> ModelTokenizer:
    """Of the default model."""
    return load_tokenizer(load_model_info(str(default_gguf)))


@pytest.fixture(scope="session")
def compiler(default_gguf: Path, grammar_tokenizer: ModelTokenizer) -> GrammarCompiler:
    """With a deadline that a busy test machine keeps."""
    info = load_model_info(str(default_gguf))
    return GrammarCompiler(lambda: grammar_tokenizer.backend, info.vocab_size, info.eos_token_ids, deadline_s=5.0)


@pytest.fixture(scope="module")
def engine(default_gguf: Path) -> ConstrainedEngine:
    """The default model behind scheduler and core."""
    return ConstrainedEngine(default_gguf)


@pytest.fixture(scope="session")
def byte_compiler() -> GrammarCompiler:
    """For a tokenizer that has one token for each byte, and EOS."""
    vocab = {character: byte for byte, character in CHARACTER_OF_BYTE.items()} | {"<|end|>": EOS_TOKEN_ID}
    backend = Tokenizer(models.BPE(vocab, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    return GrammarCompiler(lambda: backend, VOCAB_SIZE, (EOS_TOKEN_ID,), deadline_s=5.0)

"""One `LLM` for the tests of this folder, so that the model loads once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engined import LLM


@pytest.fixture(scope="session")
def llm(default_gguf: Path) -> Iterator[LLM]:
    """The default model in fp32, with room for few sequences at once."""
    with LLM(default_gguf, dtype="float32", kv_cache_memory="512MiB", max_num_seqs=4, num_threads=1) as llm:
        yield llm

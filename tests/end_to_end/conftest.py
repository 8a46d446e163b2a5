"""Servers that several tests share: one with the default model as a user gets it, one in fp32 for exact comparisons."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from tests.end_to_end import reference
from tests.end_to_end.server import Server, running


@pytest.fixture(scope="session")
def reference_model(default_gguf: Path) -> PreTrainedModel:
    """The default model in transformers, fp32."""
    return reference.load(default_gguf)


@pytest.fixture(scope="session")
def default_server(default_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The default model, default settings but for a KV cache that leaves memory to the other tests."""
    with running(default_gguf, tmp_path_factory.mktemp("default"), "--kv-cache-memory", "1GiB") as server:
        yield server


@pytest.fixture(scope="session")
def exact_server(default_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The default model in fp32."""
    folder = tmp_path_factory.mktemp("exact")
    with running(default_gguf, folder, "--dtype", "float32", "--kv-cache-memory", "1GiB") as server:
        yield server

"""What tests of several folders share: the real model, and servers that are started once for all of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engined.catalogue.resolve import resolve_model
from engined.config.schema import DEFAULT_MODEL
from tests.end_to_end.server import Server, running

THINKING_TEMPLATE = Path(__file__).with_name("end_to_end") / "thinking_template.jinja"


@pytest.fixture(scope="session", autouse=True)
def private_data_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test touches the files and batches of this user's own daemon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture(scope="session")
def default_gguf() -> Path:
    """The real weights of the default model; fetched into the cache when they are not there yet."""
    return Path(resolve_model(DEFAULT_MODEL, None))


@pytest.fixture(scope="session")
def minilm() -> Path:
    """A real encoder, all-MiniLM-L6-v2; fetched into the cache when it is not there yet."""
    return resolve_model("all-minilm-l6-v2")


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


@pytest.fixture(scope="session")
def thinking_server(default_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The default model with a template of the Qwen family, whose generation prompt begins a block of reasoning."""
    flags = ["--chat-template", str(THINKING_TEMPLATE), "--reasoning-parser", "think", "--kv-cache-memory", "1GiB"]
    with running(default_gguf, tmp_path_factory.mktemp("thinking"), *flags) as server:
        yield server


@pytest.fixture(scope="session")
def minilm_server(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real encoder in fp32, served under its catalogue name."""
    with running("all-minilm-l6-v2", tmp_path_factory.mktemp("minilm"), "--dtype", "float32") as server:
        yield server

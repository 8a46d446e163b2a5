"""What tests of several folders share: the real model, servers, and the machine.

Two workers run the tests, a file at a time. Each worker starts the servers of the session fixtures for itself.
"""

import fcntl
import os
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from engined.catalogue.resolve import resolve_model
from engined.config.schema import DEFAULT_MODEL
from tests.end_to_end.server import Server, running

THINKING_TEMPLATE = Path(__file__).with_name("end_to_end") / "thinking_template.jinja"

LONG = (
    "end_to_end/test_exactness.py",
    "clients/test_langchain_chat.py",
    "offline/test_llm.py",
    "end_to_end/test_processes.py",
    "end_to_end/test_openapi_fuzz.py",
    "reliability/test_kill_matrix.py",
    "end_to_end/test_batches.py",
    "kernels/test_linear.py",
    "reliability/test_fault_points.py",
    "end_to_end/test_bad_models.py",
    "clients/test_anthropic.py",
    "end_to_end/test_constrained_generations.py",
    "end_to_end/test_embeddings.py",
    "end_to_end/test_load.py",
)
"""Files that take the longest. They come first, so that no worker ends long after the other."""


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    # Before the workers start and torch reads it: threads that spin for each other take the other worker's core.
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        # Shorter than xdist's `popen-gw0`: there are sockets below it, whose paths may have 107 bytes.
        config.option.basetemp = str(Path(config.option.basetemp).with_name(worker.removeprefix("gw")))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {name: rank for rank, name in enumerate(LONG)}
    tests = Path(__file__).parent
    items.sort(key=lambda item: ranks.get(item.path.relative_to(tests).as_posix(), len(LONG)))


@contextmanager
def locked(path: Path, operation: int) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, operation)
        try:
            yield
        finally:
            # Closing is not enough: a process that a test forked may have the file too.
            fcntl.flock(file, fcntl.LOCK_UN)


room = ExitStack()
"""What this worker holds while it runs tests."""
is_alone = False


def wants_to_be_alone(item: pytest.Item | None) -> bool:
    return item is not None and item.get_closest_marker("alone") is not None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """A test marked `alone` has the room for itself, with its fixtures; all others share it.

    Whoever waits for the room holds the gate, so that nobody overtakes. The first of the hooks: waiting is no part of
    a test's time.
    """
    global is_alone
    if "PYTEST_XDIST_WORKER" in os.environ and not is_alone:
        is_alone = wants_to_be_alone(item)
        folder = Path(item.config.option.basetemp).parent
        with locked(folder / "gate", fcntl.LOCK_EX):
            room.enter_context(locked(folder / "room", fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH))
    try:
        return (yield)
    finally:
        # Kept for a next one: to wait for the other worker's test each time would cost more than what is measured.
        is_alone = is_alone and wants_to_be_alone(nextitem)
        if not is_alone:
            room.close()


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

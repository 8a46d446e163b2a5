"""The engine's process and its caller's: they end together, however the caller ends, and nothing is left behind."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engined import LLM, SamplingParams
from engined.errors import EngineDeadError, StartupError
from tests.end_to_end.server import descendants, title, wait_until_gone

SMALL = {"dtype": "float32", "kv_cache_memory": "64MiB", "max_model_len": 1024, "num_threads": 1}
GREEDY = SamplingParams(temperature=0, max_tokens=4)
LONG = SamplingParams(temperature=0, max_tokens=1000, ignore_eos=True)
GONE_TIMEOUT = 10.0


def engine_pids(root: int | None = None) -> set[int]:
    """Engines below a process, by default those of this one that are not a server's."""
    own = os.getpid()
    pids = descendants(own if root is None else root)
    servers = [pid for pid in pids if "supervisor" in title(pid)]
    of_servers = {pid for server in servers for pid in descendants(server)}
    return {pid for pid in pids if title(pid).startswith("engined: EngineCore")} - of_servers


@contextmanager
def script(code: str, model: Path, folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """A script without a main guard, run as a user would. It is killed at the end if it still runs."""
    path = folder / "script.py"
    path.write_text(code)
    process = subprocess.Popen(
        [sys.executable, str(path), str(model)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"XDG_RUNTIME_DIR": str(folder)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    return line.rstrip("\n")


PLAIN_SCRIPT = """
import sys
from engined import LLM, SamplingParams
llm = LLM(sys.argv[1], dtype="float32", kv_cache_memory="64MiB", max_model_len=1024, num_threads=1)
[output] = llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=1))
print(output.outputs[0].text)
print(sorted({"torch", "transformers", "click"} & set(sys.modules)), flush=True)
sys.stdin.readline()
raise ValueError("enough")
"""


def test_a_script_without_a_main_guard_that_fails(default_gguf: Path, tmp_path: Path) -> None:
    with script(PLAIN_SCRIPT, default_gguf, tmp_path) as process:
        assert read_line(process) == " Paris"
        assert read_line(process) == "[]"
        pids = engine_pids(process.pid)
        assert len(pids) == 1
        _, errors = process.communicate("\n", timeout=30)
        assert process.returncode == 1
        assert errors.endswith("ValueError: enough\n")
        wait_until_gone(list(pids), 0.1)
        assert list((tmp_path / "engined").glob("engined-*")) == []


CTRL_C_SCRIPT = """
import signal
import sys
from engined import LLM, SamplingParams
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts the tests in the background ignores it
llm = LLM(sys.argv[1], dtype="float32", kv_cache_memory="64MiB", max_model_len=1024, num_threads=1)
while True:
    print("generating", flush=True)
    try:
        llm.generate(["Once upon a time"] * 20, SamplingParams(temperature=0, max_tokens=1000, ignore_eos=True))
    except KeyboardInterrupt:
        [output] = llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=1))
        print(output.outputs[0].text)
"""


def test_ctrl_c_ends_the_call_only_and_a_kill_ends_all(default_gguf: Path, tmp_path: Path) -> None:
    with script(CTRL_C_SCRIPT, default_gguf, tmp_path) as process:
        for _ in range(2):
            assert read_line(process) == "generating"
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
            assert read_line(process) == " Paris"
        assert read_line(process) == "generating"
        pids = engine_pids(process.pid)
        assert len(pids) == 1
        process.kill()
        process.wait()
        wait_until_gone(list(pids), GONE_TIMEOUT)


def test_an_engine_that_is_killed_ends_what_runs_with_the_cause(llm: LLM, default_gguf: Path) -> None:
    before = engine_pids()
    with LLM(default_gguf, **SMALL) as second:
        [pid] = engine_pids() - before
        both = [each.generate("Water boils at", GREEDY, use_tqdm=False)[0].outputs[0].text for each in (llm, second)]
        assert both[0] == both[1]
        threading.Timer(0.5, os.kill, (pid, signal.SIGKILL)).start()
        with pytest.raises(EngineDeadError, match="EngineCore 0 was killed by SIGKILL"):
            second.generate(["Once upon a time"] * 40, LONG, use_tqdm=False)
        with pytest.raises(EngineDeadError, match="EngineCore 0 was killed by SIGKILL"):
            second.chat([{"role": "user", "content": "x"}], use_tqdm=False)
    assert engine_pids() == before
    assert llm.generate("Water boils at", GREEDY, use_tqdm=False)[0].outputs[0].text == both[0]


def test_closing_and_collecting(default_gguf: Path) -> None:
    before = engine_pids()
    unused = LLM(default_gguf, **SMALL)
    [pid] = engine_pids() - before
    del unused
    gc.collect()
    wait_until_gone([pid], 0.1)


def test_closing_while_it_works(default_gguf: Path) -> None:
    before = engine_pids()
    llm = LLM(default_gguf, **SMALL)
    threading.Timer(0.5, llm.close).start()
    with pytest.raises(EngineDeadError, match="this LLM is closed: make a new one"):
        llm.generate(["Once upon a time"] * 40, LONG, use_tqdm=False)
    llm.close()
    llm.close()
    assert engine_pids() == before
    with pytest.raises(EngineDeadError, match="this LLM is closed: make a new one"):
        llm.generate("x")


def test_an_engine_that_does_not_come_up(default_gguf: Path) -> None:
    before = engine_pids()

    is_over = threading.Event()

    def stop_it() -> None:
        while not is_over.wait(0.01):
            for pid in engine_pids() - before:
                os.kill(pid, signal.SIGSTOP)
                return

    stopper = threading.Thread(target=stop_it, daemon=True)
    stopper.start()
    cause = "EngineCore 0 was not ready after 1 s without progress.*raise startup_timeout"
    with pytest.raises(StartupError, match=cause):
        LLM(default_gguf, startup_timeout=1, **SMALL)
    is_over.set()
    stopper.join()
    assert engine_pids() == before


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_copy_is_refused_and_ends_nothing(llm: LLM) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            llm.generate("x", GREEDY, use_tqdm=False)
        except EngineDeadError as error:
            llm.close()
            os._exit(0 if "made in another process" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert llm.generate("Water boils at", GREEDY, use_tqdm=False)

"""Child processes for the supervisor's tests: what they do is in their data. They run in the real child boot code."""

import os
import signal
import subprocess
import time
from typing import Any

from engined.errors import CheckpointError
from engined.process.child import Child
from engined.process.heartbeat import Phase


def _behaviour(data: dict[str, Any]) -> str:
    once = data.get("once")
    if once is not None and os.path.exists(once):
        return "serve"
    if once is not None:
        open(once, "a").close()
    return str(data["behaviour"])


def _fail(behaviour: str) -> None:
    if behaviour == "fail":
        raise CheckpointError("model.safetensors: missing parameter lm_head.weight")
    if behaviour == "crash":
        raise RuntimeError("boom")


def _load_slowly(child: Child) -> None:
    for number in range(20):
        child.report_progress("loading weights", f"{number} of 20 MB")
        time.sleep(0.25)
    child.report_progress("warming up")


def main(child: Child) -> int:
    """Act as `child.data` says; keys: behaviour, mark, and once: a file; if it is there already, act as "serve"."""
    mark = child.data.get("mark")
    num_signals = 0

    def on_terminate(*_: object) -> None:
        nonlocal num_signals
        num_signals += 1
        if mark:
            with open(mark, "a") as file:
                file.write(f"{child.name} SIGTERM {num_signals} {time.monotonic()}\n")

    behaviour = _behaviour(child.data)
    _fail(behaviour)
    child.report_progress("loading weights")
    if behaviour == "slow":
        _load_slowly(child)
    if behaviour == "never_ready":
        time.sleep(3600)
    if behaviour == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, on_terminate)
    if behaviour == "parent":
        shell = subprocess.run(["sh", "-c", "sleep 1 >/dev/null & echo $!"], stdout=subprocess.PIPE, check=True)
        child.report_ready(orphan=int(shell.stdout))
    else:
        child.report_ready(num_kv_blocks=7)
    if behaviour == "quit":
        return int(child.data["code"])
    if behaviour == "kill_self":
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "hang":
        child.heartbeat.beat(Phase.STEP)
        time.sleep(3600)
    while num_signals == 0:
        child.heartbeat.beat(Phase.SERVING)
        time.sleep(0.02)
    if behaviour == "drain":
        deadline = time.monotonic() + child.data["drain_seconds"]
        while time.monotonic() < deadline and num_signals < 2:
            time.sleep(0.02)
    return int(child.data.get("code", 0))

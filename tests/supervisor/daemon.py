"""A small daemon around the real Supervisor: `python daemon.py JSON`, with groups of children that play `roles`."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from engined import log
from engined.process.board import DaemonState
from engined.process.heartbeat import Phase
from engined.process.launch import ChildSpec
from engined.process.signals import SignalInbox
from engined.supervisor.restart_policy import RestartPolicy
from engined.supervisor.service import ServiceSpec
from engined.supervisor.supervisor import WATCHED_SIGNALS, Supervisor


def _service(name: str, data: dict[str, Any], settings: dict[str, Any]) -> ServiceSpec:
    environment = {"PYTHONPATH": os.environ["PYTHONPATH"]}
    delays = settings.get("restart_delays")
    return ServiceSpec(
        name=name,
        make=lambda: ChildSpec(name=name, entry="tests.supervisor.roles", data=data, environment=environment),
        policy=None if delays is None else RestartPolicy(delays, max_crashes=settings.get("max_crashes", 3), window=60),
        follows="EngineCore 0" if name.startswith("frontend") else None,
        budgets={phase: settings.get("budget", 60.0) for phase in Phase},
    )


class _Announcer:
    """Prints each state that differs from the one before."""

    def __init__(self) -> None:
        self._last: tuple[object, ...] = ()

    def __call__(self, state: DaemonState) -> None:
        new = (state.phase, state.text, state.num_restarts)
        if new != self._last:
            self._last = new
            print("state", json.dumps({"phase": state.phase, "text": state.text, "retry_after": state.retry_after}))
            sys.stdout.flush()


def main() -> int:
    settings = json.loads(sys.argv[1])
    log.setup("supervisor")
    with (
        SignalInbox(*WATCHED_SIGNALS) as signals,
        Supervisor(
            signals, settings.get("drain_timeout", 30), _Announcer(), Path(settings["crash_folder"])
        ) as supervisor,
    ):
        groups = settings["groups"]
        supervisor.start([[_service(name, data, settings) for name, data in group.items()] for group in groups])
        facts = supervisor.wait_until_ready()
        if facts is not None:
            print("ready", json.dumps(facts), flush=True)
            supervisor.wait_for_stop()
        return supervisor.stop()


if __name__ == "__main__":
    sys.exit(main())

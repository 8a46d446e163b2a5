"""A small daemon around the real Supervisor: `python daemon.py JSON`, with groups of children that play `roles`."""

import json
import os
import sys

from engined import log
from engined.process.launch import ChildSpec
from engined.process.signals import SignalInbox
from engined.supervisor.supervisor import WATCHED_SIGNALS, Supervisor


def _spec(name: str, data: dict[str, object]) -> ChildSpec:
    return ChildSpec(
        name=name, entry="tests.supervisor.roles", data=data, environment={"PYTHONPATH": os.environ["PYTHONPATH"]}
    )


def main() -> int:
    settings = json.loads(sys.argv[1])
    log.setup("supervisor")
    with SignalInbox(*WATCHED_SIGNALS) as signals, Supervisor(signals, settings.get("drain_timeout", 30)) as supervisor:
        supervisor.start([[_spec(name, data) for name, data in group.items()] for group in settings["groups"]])
        facts = supervisor.wait_until_ready(settings.get("startup_timeout", 60))
        if facts is not None:
            print("ready", json.dumps(facts), flush=True)
            supervisor.wait_for_stop()
        return supervisor.stop()


if __name__ == "__main__":
    sys.exit(main())

"""The role of a whole daemon that is a child of somebody's process: it ends with its parent. `engined.process.child`
imports this module and calls `main`; see `engined.cli.private_daemon`."""

import msgspec

from engined.config.schema import Config
from engined.process.child import Child
from engined.process.heartbeat import Phase
from engined.supervisor.run import run_server


def main(child: Child) -> int:
    """Serve what the configuration says until SIGTERM. Raises EnginedError for what goes wrong at the start."""
    return run_server(msgspec.convert(child.data, Config), lambda: child.heartbeat.beat(Phase.SERVING))

"""`engined serve`."""

import importlib
import os

from engined.cli.config_command import config_command
from engined.config.load import LoadedConfig
from engined.supervisor.listeners import check_no_other_server


def _serve(loaded: LoadedConfig) -> int:
    # First of all, a download and the imports of the supervisor included. Sockets of the service manager are nobody
    # else's; `run_server` takes them.
    if "LISTEN_FDS" not in os.environ:
        check_no_other_server(loaded.config.server)
    exit_code: int = importlib.import_module("engined.supervisor.run").run_server(loaded.config)
    return exit_code


command = config_command(
    "serve",
    _serve,
    "Serve MODEL (a Hugging Face folder, a .gguf file, a catalogue name or a hub id) until SIGTERM or Ctrl-C. "
    "Without MODEL it is a small one that is downloaded once. A first signal lets running requests finish, a second "
    "one does not.",
)

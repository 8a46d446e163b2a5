"""`engined serve`."""

from engined.cli.config_command import config_command
from engined.config.load import LoadedConfig
from engined.supervisor.run import run_server


def _serve(loaded: LoadedConfig) -> int:
    return run_server(loaded.config)


command = config_command(
    "serve",
    _serve,
    "Serve MODEL (a Hugging Face folder, a .gguf file, a catalogue name or a hub id) until SIGTERM or Ctrl-C. "
    "Without MODEL it is a small one that is downloaded once. A first signal lets running requests finish, a second "
    "one does not.",
)

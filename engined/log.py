"""One log format for all processes: time, level, process with its rank, pid, module, text.

Each process calls `setup` once, first thing; nobody else touches the logging configuration.
"""

import logging
import sys
from typing import Literal

LogLevel = Literal["debug", "info", "warning", "error"]


class _ProcessFormatter(logging.Formatter):
    """Formats one line a record; a traceback follows on its own lines."""

    def __init__(self, process_name: str) -> None:
        super().__init__(
            f"%(asctime)s.%(msecs)03d %(levelname)-7s {process_name}[%(process)d] %(name)s: %(message)s",
            datefmt="%Y-%m-%d %H:%M:%S",
        )


def setup(process_name: str, level: LogLevel = "info") -> None:
    """Send the log of this process to stderr, under `process_name` (for example "EngineCore 0")."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_ProcessFormatter(process_name))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("engined").setLevel(level.upper())
    logging.raiseExceptions = False  # a closed stderr must not take the daemon down
    logging.captureWarnings(True)

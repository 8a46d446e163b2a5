"""The log of all processes: one line a record, to stderr, as text or as JSON.

Each process calls `setup` once, first thing; nobody else touches the logging configuration.
"""

import logging
from typing import Literal

from engined.log.formats import JsonFormatter, TextFormatter
from engined.log.losses import LossCounter
from engined.log.output import LogOutput

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]

_STDERR = 2


class LogHandler(logging.Handler):
    """Writes records, and says how many were lost as soon as writing works again. It neither raises nor waits long."""

    def __init__(self, output: LogOutput, losses: LossCounter) -> None:
        super().__init__()
        self.num_dropped = 0
        """Records that could not be written."""
        self._num_unreported = 0
        self._output = output
        self.losses = losses
        """Of this process and its relatives."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; called under the handler's lock."""
        if self._num_unreported and self._write(_note_of_loss(self._num_unreported)):
            self._num_unreported = 0
        if not self._write(record):
            self.num_dropped += 1
            self.losses.add()
            self._num_unreported += 1

    def close(self) -> None:
        """Release the descriptors."""
        super().close()
        self._output.close()
        self.losses.close()

    def _write(self, record: logging.LogRecord) -> bool:
        try:
            line = self.format(record)
        except Exception:  # arguments that do not fit their text: the outermost boundary of a record
            return False
        return self._output.write(line + "\n")


def setup(
    process_name: str,
    level: LogLevel = "info",
    format: LogFormat = "text",
    *,
    is_journal: bool = False,
    losses_fd: int | None = None,
) -> None:
    """Send the log of this process to stderr, under `process_name` (for example "EngineCore 0").

    `is_journal`: stderr leads to systemd's journal, which takes the level from a prefix and knows the time.
    `losses_fd`: where the parent counts lost lines; None in the root of all processes.
    """
    formatter_type = JsonFormatter if format == "json" else TextFormatter
    handler = LogHandler(LogOutput(_STDERR), LossCounter(losses_fd))
    handler.setFormatter(formatter_type(process_name, is_journal=is_journal))
    root = logging.getLogger()
    for old in root.handlers:
        if isinstance(old, LogHandler):
            old.close()
    root.handlers[:] = [handler]

    root.setLevel(logging.WARNING)
    logging.getLogger("engined").setLevel(level.upper())
    logging.raiseExceptions = False  # a library's own handler must not take the daemon down
    logging.captureWarnings(True)


def num_dropped() -> int:
    """Records that could not be written, by this process and all that descend from it. For the root of them only."""
    return sum(handler.losses.read() for handler in logging.getLogger().handlers if isinstance(handler, LogHandler))


def losses_fd() -> int | None:
    """What children inherit to count their losses; None where `setup` was not called."""
    return next((h.losses.fd for h in logging.getLogger().handlers if isinstance(h, LogHandler)), None)


def _note_of_loss(count: int) -> logging.LogRecord:
    text = "%d lines of this log were lost: they could not be written"
    return logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, (count,), None)

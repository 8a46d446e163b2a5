"""What a line of the log looks like: text for people, JSON for programs. All processes; used by `setup`.

Whatever clients send can end up in a message. In text no control character gets through, and what follows a line break
is indented, so that nobody can forge a line or speak to a terminal. JSON escapes by itself.
"""

import json
import logging
from datetime import UTC, datetime
from typing import Any

_LEVEL_PREFIXES = {logging.DEBUG: "<7>", logging.INFO: "<6>", logging.WARNING: "<4>", logging.ERROR: "<3>"}
"""As in sd-daemon(3)."""
_CRITICAL_PREFIX = "<2>"
_INDENT = "    "
_UNPRINTABLE = [
    *range(0x20),
    *range(0x7F, 0xA0),
    # They break lines, or turn the direction in which text is shown.
    *range(0x2028, 0x202F),
    *range(0x2066, 0x206A),
]
_ESCAPES = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in _UNPRINTABLE}
_ESCAPES_BUT_NEWLINE = {code: text for code, text in _ESCAPES.items() if code != ord("\n")}


def printable(text: str) -> str:
    """`text` with every control character, line breaks included, written out."""
    return text.translate(_ESCAPES)


class TextFormatter(logging.Formatter):
    """Time, level, process, module, text. In the journal every line begins with its level instead of the time."""

    def __init__(self, process_name: str, *, is_journal: bool) -> None:
        source = f"{process_name}[%(process)d] %(name)s: %(message)s"
        time = "" if is_journal else "%(asctime)s.%(msecs)03d "
        super().__init__(f"{time}%(levelname)-7s {source}", datefmt="%Y-%m-%d %H:%M:%S")
        self._is_journal = is_journal

    def format(self, record: logging.LogRecord) -> str:
        """One record; a traceback, and what has several lines, goes on in lines that are indented."""
        prefix = _level_prefix(record) if self._is_journal else ""
        text = super().format(record).translate(_ESCAPES_BUT_NEWLINE)
        return prefix + text.replace("\n", f"\n{prefix}{_INDENT}")


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, process, pid, module, message; exception and request where there is one."""

    def __init__(self, process_name: str, *, is_journal: bool) -> None:
        super().__init__()
        self._process_name = process_name
        self._is_journal = is_journal

    def format(self, record: logging.LogRecord) -> str:
        """One record. Its attribute `request`, if the caller gave one, is an object of numbers and short texts."""
        line: dict[str, Any] = {
            "time": _rfc3339(record.created),
            "level": record.levelname.lower(),
            "process": self._process_name,
            "pid": record.process,
            "module": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if (request := getattr(record, "request", None)) is not None:
            line["request"] = request
        text = json.dumps(line, separators=(",", ":"), default=str)
        return _level_prefix(record) + text if self._is_journal else text


def _level_prefix(record: logging.LogRecord) -> str:
    return _LEVEL_PREFIXES.get(record.levelno, _CRITICAL_PREFIX)


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

"""One line of `engined doctor`."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was found, and what to do about it."""

    level: Level
    """A warning serves, but slowly or not for long; an error must be mended before anything serves."""
    name: str
    text: str
    remedy: str | None = None
    """None if there is nothing to do."""


def ok(name: str, text: str) -> Finding:
    """All is well."""
    return Finding(level="ok", name=name, text=text)


def warning(name: str, text: str, remedy: str) -> Finding:
    """It serves, but slowly or not for long."""
    return Finding(level="warning", name=name, text=text, remedy=remedy)


def error(name: str, text: str, remedy: str) -> Finding:
    """It does not serve."""
    return Finding(level="error", name=name, text=text, remedy=remedy)

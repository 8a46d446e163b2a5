"""What stands at a place of a text that is still growing: a piece of syntax, the beginning of one, or neither.

Frontend process; used by the parsers of tool calls. A piece is bounded in length, so that looking again with each
piece of text keeps the time linear.
"""

import re
from collections.abc import Iterable
from enum import Enum


class Part(str):
    """A part of a piece of syntax which is a regular expression. It may not have alternatives outside of brackets."""


SPACE = Part(r"\s{0,8}")
"""Whitespace, which models now and then write a little differently than they were trained to."""
NAME = Part(r"(?P<name>[^\s<>(){}\[\],=\"']{1,128})")
"""The name of a tool."""
REST = Part("(?P<rest>)")
"""Where reading goes on after the piece has been found; what comes behind is only looked at."""


class Outcome(Enum):
    """What was found of a piece that is not there as a whole."""

    NO = "no"
    MAYBE = "maybe"
    """The text ends within what may become the piece."""


class Lookahead:
    """One piece of syntax: literals, and parts which are regular expressions, one behind the other."""

    def __init__(self, *parts: str) -> None:
        atoms = [atom for part in parts for atom in ([part] if isinstance(part, Part) else map(re.escape, part))]
        if REST not in parts:
            atoms.append(REST)
        self._whole = re.compile("".join(atoms))
        beginning = r"\Z"
        for atom in reversed(atoms):
            beginning = rf"(?:{atom}{beginning}|\Z)"
        self._beginning = re.compile(beginning)

    def match(self, text: str, position: int) -> re.Match[str] | Outcome:
        """The piece at `position`, with the groups of its parts, or why there is none."""
        whole = self._whole.match(text, position)
        if whole is not None:
            return whole
        return Outcome.MAYBE if self._beginning.match(text, position) else Outcome.NO


def match_first(pieces: Iterable[Lookahead], text: str, position: int) -> re.Match[str] | Outcome:
    """The one of these pieces that stands at `position`. None of them may be the beginning of another."""
    outcome = Outcome.NO
    for piece in pieces:
        found = piece.match(text, position)
        if isinstance(found, re.Match):
            return found
        if found is Outcome.MAYBE:
            outcome = found
    return outcome

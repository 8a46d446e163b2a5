"""Tools for text that comes in pieces: finding literals that may be cut, holding whitespace back. Frontend process."""

import re
from functools import cache

WHITESPACE = " \t\r\n"
_NEVER = "(?!)"
_WHITESPACE_RUN = re.compile(r"[ \t\r\n]*")


def skip_whitespace(text: str, position: int) -> int:
    """Where the whitespace at `position` ends."""
    match = _WHITESPACE_RUN.match(text, position)
    assert match is not None
    return match.end()


class MarkerSearch:
    """Finds the first of some literals. It has no state; one serves all parsers of a format."""

    def __init__(self, *markers: str) -> None:
        self._pattern = _compile(markers)

    def search(self, text: str, position: int) -> tuple[int, str | None]:
        """Where the first marker begins, and which it is.

        None, if there is no whole one: then nothing before the place given can belong to a marker, whatever follows;
        the rest, if any, is the beginning of one.
        """
        match = self._pattern.search(text, position)
        if match is None:
            return len(text), None
        return match.start(), match[match.lastindex] if match.lastindex else None

    def match(self, text: str, position: int) -> tuple[bool, str | None]:
        """Whether a marker begins at `position`, and which one, if it is there as a whole."""
        match = self._pattern.match(text, position)
        if match is None:
            return False, None
        return True, match[match.lastindex] if match.lastindex else None


class TrailingWhitespace:
    """Lets text through, but keeps back the whitespace at its end until it is known what follows."""

    def __init__(self, characters: str = WHITESPACE) -> None:
        self._characters = characters
        self._held: list[str] = []

    def let_through(self, text: str) -> str:
        """What of `text`, and of what was held before it, is certainly followed by something else."""
        kept = text.rstrip(self._characters)
        if not kept:
            self._held.append(text)
            return ""
        passed = self.release() + kept
        self._held.append(text[len(kept) :])
        return passed

    def release(self) -> str:
        """What is held; afterwards nothing is."""
        held = "".join(self._held)
        self._held = []
        return held


@cache
def _compile(markers: tuple[str, ...]) -> re.Pattern[str]:
    # Formats are few and parsers many: the patterns are made once.
    longest_first = sorted(markers, key=len, reverse=True)
    return re.compile("|".join(f"({re.escape(marker)})|{_cut_literal(marker)}" for marker in longest_first) or _NEVER)


def _cut_literal(literal: str) -> str:
    """A pattern of every beginning of `literal`, but for the whole, at the end of the text."""
    pattern = ""
    for character in reversed(literal[1:-1]):
        pattern = f"(?:{re.escape(character)}{pattern})?"
    return rf"{re.escape(literal[0])}{pattern}\Z"

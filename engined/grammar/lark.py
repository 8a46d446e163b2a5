"""Pieces of the library's grammar language. Pure; used where constraints become grammars."""

import json
from collections.abc import Iterable
from typing import Any

from engined.errors import GrammarError
from engined.grammar.json_schema import ALLOWED_ESCAPES, to_enforceable
from engined.grammar.limits import MAX_WHITESPACE
from engined.protocol.tool_grammar import Pieces

ANY_TEXT = "/(?s:.*)/"


class Terminals:
    """Terminals with a rule for each: only in them are intersections and complements allowed."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, bool], str] = {}

    def add(self, expression: str, *, is_lazy: bool) -> str:
        """The name of a rule for `expression`, which ends as soon as it can if it is lazy.

        One that holds a complement must be if it is complete where it cannot go on: the library breaks down over it
        where a special token follows.
        """
        return self._names.setdefault((expression, is_lazy), f"value_{len(self._names)}")

    @property
    def definitions(self) -> list[str]:
        """The lines that define them."""
        return [
            f"{name}{'[lazy]' if is_lazy else ''}: {name.upper()}\n{name.upper()}: {expression}"
            for (expression, is_lazy), name in self._names.items()
        ]


def literal(text: str) -> str:
    """A string of the language, which is written as in JSON. Raises GrammarError for half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise GrammarError("half of a surrogate pair is no text") from None
    return json.dumps(text, ensure_ascii=False)


def text_without(texts: Iterable[str]) -> str:
    """The expression of a terminal: any text that holds none of `texts`."""
    unwanted = " | ".join(literal(text) for text in texts)
    return f"{ANY_TEXT} & ~({ANY_TEXT} ({unwanted}) {ANY_TEXT})" if unwanted else ANY_TEXT


def join(*parts: str | Pieces) -> str:
    """One after the other: parts of a rule, and pieces of text that become a part."""
    return " ".join(text for part in parts if (text := part if isinstance(part, str) else _pieces(part)))


def merge(pieces: Pieces) -> Pieces:
    """Neighbouring texts as one, and none that is empty."""
    merged: Pieces = []
    for piece in pieces:
        last = merged[-1] if merged else None
        if isinstance(last, str) and isinstance(piece, str):
            merged[-1] = last + piece
        elif piece != "":
            merged.append(piece)
    return merged


def _pieces(pieces: Pieces) -> str:
    return " ".join(literal(piece) if isinstance(piece, str) else f"<[{piece}]>" for piece in merge(pieces))


def json_value(schema: dict[str, Any], any_whitespace: bool) -> str:
    """JSON by a schema, as a part of a rule. Raises GrammarError for what cannot be enforced."""
    return f"%json {json.dumps(to_enforceable(schema) | {'x-guidance': json_options(any_whitespace)})}"


def json_options(any_whitespace: bool) -> Any:
    """How JSON is written, and that nothing of a schema may be left out."""
    # Always given, because a schema may bring options of its own, and whitespace without end never closes a document.
    strict = {"lenient": False, "coerce_one_of": False, "json_allowed_escapes": ALLOWED_ESCAPES}
    if any_whitespace:
        return strict | {"whitespace_pattern": rf"\n?[ ]{{0,{MAX_WHITESPACE}}}"}
    return strict | {"whitespace_flexible": False}

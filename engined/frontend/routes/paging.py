"""Lists that are given out in pages: `limit` and `after` of the query. Frontend process."""

import re
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from engined.errors import RequestError


class HasId(Protocol):
    """Something that has a place in a list."""

    @property
    def id(self) -> str:
        """Its id."""


T = TypeVar("T", bound=HasId)


def take_page(items: Sequence[T], query: Mapping[str, str], *, default: int, maximum: int) -> tuple[list[T], bool]:
    """The page that the query asks for, and whether there is more behind it. Raises RequestError naming the part."""
    limit = query.get("limit", str(default))
    if re.fullmatch("[0-9]{1,6}", limit, re.ASCII) is None or not 1 <= int(limit) <= maximum:
        raise RequestError(f"limit must be from 1 to {maximum}", param="limit")
    begin = 0
    if (after := query.get("after")) is not None:
        positions = [position for position, item in enumerate(items) if item.id == after]
        if not positions:
            raise RequestError("after must be the id of an item of the list", param="after")
        begin = positions[0] + 1
    end = begin + int(limit)
    return list(items[begin:end]), end < len(items)


def choose(query: Mapping[str, str], name: str, choices: Sequence[str], default: str) -> str:
    """One of a few words. Raises RequestError naming the part of the query."""
    value = query.get(name, default)
    if value not in choices:
        raise RequestError(f"{name} must be {' or '.join(choices)}", param=name)
    return value

"""A look through the input of a batch before anything is computed: how many lines, and which are wrong. Pure, apart
from reading the file."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from engined.batch.request_line import MAX_ECHOED, LineFault, digest, parse_line, read_lines

MAX_FAULTS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What a file holds."""

    num_lines: int
    """Lines that are not blank."""
    faults: tuple[tuple[int, LineFault], ...]
    """Numbers of the first lines that are no requests, and why."""
    duplicate: tuple[int, LineFault] | None
    """The first line whose custom_id stands in an earlier one."""


def survey(path: Path, urls: Collection[str]) -> Survey:
    """Read the whole file, a line at a time. Raises OSError."""
    num_lines = 0
    faults: list[tuple[int, LineFault]] = []
    duplicate = None
    first_numbers: dict[bytes, int] = {}
    for number, data in read_lines(path):
        num_lines += 1
        fault = None
        try:
            custom_id: str | None = parse_line(data, urls).custom_id
        except LineFault as error:
            fault, custom_id = error, error.custom_id
        if custom_id is not None and (first := first_numbers.setdefault(digest(custom_id), number)) != number:
            fault = _duplicate(custom_id, first)
            duplicate = duplicate or (number, fault)
        if fault is not None and len(faults) < MAX_FAULTS:
            faults.append((number, fault))
    return Survey(num_lines=num_lines, faults=tuple(faults), duplicate=duplicate)


def _duplicate(custom_id: str, first: int) -> LineFault:
    return LineFault(
        f"custom_id {custom_id[:MAX_ECHOED]!r} stands in line {first} already: give each line its own",
        code="duplicate_custom_id",
        param="custom_id",
        custom_id=custom_id,
    )

"""Plain text for the terminal: tables and durations. Used by the commands that show how a server is doing."""

from collections.abc import Collection, Sequence

_GAP = "  "


def format_table(
    rows: Sequence[Sequence[str]], *, flexible: int, min_width: int, max_width: int, right: Collection[int] = ()
) -> str:
    """Rows with aligned columns; the first one is the heading. The columns `right` are aligned to the right.

    If a line would be wider than `max_width`, the column `flexible` is shortened, at most to `min_width`.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    excess = sum(widths) + len(_GAP) * (len(widths) - 1) - max_width
    widths[flexible] = min(widths[flexible], max(min_width, widths[flexible] - excess))
    lines = []
    for row in rows:
        cells = [
            _shorten(cell, width).rjust(width) if index in right else _shorten(cell, width).ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(_GAP.join(cells).rstrip())
    return "\n".join(lines)


def format_seconds(seconds: float) -> str:
    """For example 0.4s, 12s, 3m05s, 2h10m, 5d03h."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"


def _shorten(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"

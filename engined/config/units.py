"""Sizes and counts as people write them: "2GiB", "512M", "8k"; and back again for messages."""

import re

from engined.errors import ConfigError

_BYTE_UNITS = {"": 1, "B": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("KMGT", start=1)
    for suffix, base in (("", 1024), ("iB", 1024), ("B", 1000))
}
_TOKEN_UNITS = {"": 1, "k": 1000, "m": 1000**2, "K": 1024, "M": 1024**2}


def parse_bytes(text: str) -> int:
    """Bytes of "1073741824", "1GiB", "1G" (all 2**30) or "1GB" (10**9). Raises ConfigError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    units = {unit.lower(): factor for unit, factor in _BYTE_UNITS.items()}
    if match is None or match[2].lower() not in units:
        raise ConfigError(f"{text!r} is not a size: write for example 512MiB or 2GiB")
    return (
        int(float(match[1]) * units[match[2].lower()]) if "." in match[1] else int(match[1]) * units[match[2].lower()]
    )


def parse_tokens(text: str) -> int:
    """Tokens of "8192", "8k" (8000) or "8K" (8192); the case means what it means in vLLM. Raises ConfigError."""
    match = re.fullmatch(r"(\d+)([kKmM]?)", text.strip())
    if match is None:
        raise ConfigError(f"{text!r} is not a number of tokens: write for example 8192, 8k (8000) or 8K (8192)")
    return int(match[1]) * _TOKEN_UNITS[match[2]]


def format_bytes(size: int) -> str:
    """A size for people, with three digits: "1.45 GiB"."""
    value = float(size)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{size} bytes" if unit == "bytes" else f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"

"""The bounds of one constraint, and of all that are remembered. Used by the compiler.

The library counts its work and gives up by itself, but some of it grows with the square of a pattern's length, and some
of it recurses along the references of a grammar. So sources are bounded here, by what takes well under a second.
"""

from llguidance import LLParserLimits

MAX_SOURCE_BYTES = 128 << 10
"""Of a schema, or of all choices."""
MAX_PATTERN_BYTES = 8 << 10
"""Of a regular expression, and of all those in one schema."""
MAX_LARK_BYTES = 16 << 10
"""Of a grammar, and of a structural tag."""
MAX_JSON_DEPTH = 64
COMPILE_SECONDS = 0.9
"""How long a client waits for the verdict; the core, which compiles only what passed, waits longer."""
MAX_MASK_SECONDS = 0.25
"""CPU time of the first mask: a step of all requests waits for the masks of a step."""
COMPILE_STACK_BYTES = 256 << 20
"""Address space, hardly touched: the deepest recursion that a source of the sizes above caused took about 50 MB."""
CACHE_BYTES = 64 << 20
MAX_WHITESPACE = 16
"""Spaces between two tokens of JSON, after at most one line break."""

# Measured: a compiled schema takes 30 to 270 times the bytes of its source.
_COMPILED_BYTES_PER_BYTE = 300
_COMPILED_BYTES_AT_LEAST = 64 << 10


def compiled_bytes(source: str) -> int:
    """About what the compiled form of a source occupies, rather more than less."""
    return _COMPILED_BYTES_AT_LEAST + _COMPILED_BYTES_PER_BYTE * len(source)


def parser_limits() -> LLParserLimits:
    """The limits that the library keeps: its own, but no state of its parser in error texts."""
    return LLParserLimits(verbose_errors=False)

"""Pure work that is large enough to hold up the event loop is done beside it. Frontend process.

A thread takes turns with the loop every few milliseconds. Small work stays: handing it over costs more than doing it.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

LARGE_BYTES = 128 << 10
"""Of JSON, read or written: some ten milliseconds where Python looks at every value."""
LARGE_COUNT = 2048
"""Of objects that Python looks at one by one."""

T = TypeVar("T")


async def call_off_loop(function: Callable[..., T], *arguments: object, is_large: bool) -> T:
    """`function(*arguments)`, in a thread if it `is_large`. Raises what it raises."""
    return await asyncio.to_thread(function, *arguments) if is_large else function(*arguments)

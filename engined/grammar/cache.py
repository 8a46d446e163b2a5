"""Compiled grammars by their source, the least recently used ones forgotten first. Thread-safe; owned by a compiler."""

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class ByteBoundCache(Generic[K, V]):
    """Keeps values while the sum of their sizes stays within `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Sum of the sizes of the values that are kept."""
        return self._num_bytes

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """The value of `key`, which is now the most recently used one."""
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key][0]

    def put(self, key: K, value: V, num_bytes: int) -> None:
        """Keep a value of a size; one that is larger than the whole cache is not kept."""
        with self._lock:
            self._drop(key)
            if num_bytes > self._max_bytes:
                return
            self._entries[key] = (value, num_bytes)
            self._num_bytes += num_bytes
            while self._num_bytes > self._max_bytes:
                self._drop(next(iter(self._entries)))

    def _drop(self, key: K) -> None:
        if key in self._entries:
            self._num_bytes -= self._entries.pop(key)[1]

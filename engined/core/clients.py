"""The links to the frontends: shared by the two IO threads, so guarded by a lock. Runs in the EngineCore process."""

import threading

from engined.ipc.channel import BlockingChannel


class ClientTable:
    """Connected frontends by index. An index is never used again, so a late output cannot reach a successor."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channels: dict[int, BlockingChannel] = {}
        self._next_index = 0

    def add(self, channel: BlockingChannel) -> int:
        """Register a new link; returns its index."""
        with self._lock:
            index = self._next_index
            self._next_index += 1
            self._channels[index] = channel
            return index

    def remove(self, index: int) -> None:
        """Forget a link. The input thread closes it."""
        with self._lock:
            self._channels.pop(index, None)

    def get(self, index: int | None) -> list[BlockingChannel]:
        """The link of one client (none if it is gone), or all links for None."""
        with self._lock:
            if index is None:
                return list(self._channels.values())
            return [self._channels[index]] if index in self._channels else []

"""Has the system provide the pages of KV blocks before they are written. Rank processes, between the steps.

The memory of the KV cache is not touched before it is used, so that a large cache costs nothing until it fills. But a
page that is provided in the middle of a forward holds that up: a virtual machine whose host takes unused memory back
needs 14 ms a MiB for it here (0.14 ms where the host has it at hand), more than the prompt that is written there.
"""

import ctypes
import logging
import os
import threading
import time
from collections.abc import Iterable

from torch import Tensor

logger = logging.getLogger(__name__)

AHEAD = 256 << 20
"""Bytes that are provided beyond the last block in use. Fresh blocks are used in the order of their numbers."""
_MIN_STRETCH = 32 << 20
"""Bytes for which a thread is started."""
_STEP = 2 << 20
"""Bytes asked for at once: a huge page. The process cannot map memory meanwhile."""
_MADV_POPULATE_WRITE = 23
"""From Linux 5.14 on. It changes nothing that is there."""
_LEAST_PRIORITY = 19
_REST_SECONDS = 0.05
"""Without a step, before the next page is asked for. A low priority is not enough: while a host provides the page, the
virtual CPU stands still, and with it the compute thread that would run there: a token of int4 took 8.0 ms, not 5.6.
"""


class KVPages:
    """The pages of one rank's blocks. All calls come from one thread."""

    def __init__(self, blocks: Tensor) -> None:
        """blocks [num_blocks, bytes] uint8, each of all layers, of which none is used yet."""
        self._blocks = blocks
        self._block_bytes = blocks[0].nbytes
        self._num_used_bytes = 0
        self._num_provided_bytes = 0
        self._last_step_at = time.monotonic()
        self._thread: threading.Thread | None = None

    def note_step(self) -> None:
        """A step is computed now; no page is asked for meanwhile."""
        self._last_step_at = time.monotonic()

    def note_use(self, block_ids: Iterable[int]) -> None:
        """Blocks are about to be written; whatever may come after them is provided when there is time."""
        self._num_used_bytes = max(self._num_used_bytes, (max(block_ids, default=-1) + 1) * self._block_bytes)
        wanted = min(self._num_used_bytes + AHEAD, self._blocks.nbytes)
        num_missing_bytes = wanted - self._num_provided_bytes
        if num_missing_bytes <= 0 or (num_missing_bytes < _MIN_STRETCH and wanted < self._blocks.nbytes):
            return
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._provide, args=(wanted,), name="KV pages", daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Until what was begun is done."""
        if self._thread is not None:
            self._thread.join()

    def _provide(self, wanted: int) -> None:
        # Only what no other process needs of the CPUs.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LEAST_PRIORITY)
        libc = ctypes.CDLL(None, use_errno=True)
        # What is in use has its pages.
        begin = max(self._num_provided_bytes, self._num_used_bytes // _STEP * _STEP)
        for offset in range(begin, wanted, _STEP):
            while (rest := time.monotonic() - self._last_step_at) < _REST_SECONDS:
                time.sleep(_REST_SECONDS - rest)
            address, size = self._blocks.data_ptr() + offset, min(_STEP, self._blocks.nbytes - offset)
            if libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), _MADV_POPULATE_WRITE) != 0:
                logger.debug("KV pages come as they are used: %s", os.strerror(ctypes.get_errno()))
                self._num_provided_bytes = self._blocks.nbytes
                return
            self._num_provided_bytes = offset + size

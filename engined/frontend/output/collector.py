"""Where the outputs of one HTTP request wait for their consumer. Frontend process.

The output task puts, one handler takes. A slow consumer costs no memory but its own text: pending deltas of a choice
are merged into one, and when too much is pending behind a client that does not read, the request has to end.
"""

import asyncio
import time

from engined.frontend.output.choice_output import ChoiceOutput

MAX_PENDING_BYTES = 96 << 10
"""Of deltas that wait while their consumer waits for its client, about as they will be on the wire."""


class RequestOutputCollector:
    """Pending deltas of all choices of one request. After the last finish, or an error, nothing is put any more.

    With `final_only` the consumer sleeps until every choice has finished, and then gets each in one piece.
    """

    def __init__(self, num_choices: int, *, final_only: bool) -> None:
        self._num_unfinished = num_choices
        self._final_only = final_only
        self._pending: dict[int, ChoiceOutput] = {}
        self._error: Exception | None = None
        self._ready = asyncio.Event()
        self._num_pending_bytes = 0
        self.is_held_up = False
        """Set by the consumer while it waits for its client."""
        self.is_overfull = False
        """Whether too much is pending behind such a client; nothing more is taken then."""
        self.first_output_time: float | None = None
        """When the first delta came, in seconds of CLOCK_MONOTONIC."""

    @property
    def is_finished(self) -> bool:
        """Whether everything has been taken."""
        return self._num_unfinished == 0 and not self._pending

    def put(self, output: ChoiceOutput) -> None:
        """Add the next delta of a choice."""
        if self.is_overfull:
            return
        if self.first_output_time is None:
            self.first_output_time = time.monotonic()
        pending = self._pending.get(output.index)
        if pending is None:
            self._pending[output.index] = output
        else:
            pending.merge(output)
        if output.finish_reason is not None:
            self._num_unfinished -= 1
        self._num_pending_bytes += output.num_bytes
        is_too_much = self.is_held_up and self._num_pending_bytes > MAX_PENDING_BYTES
        self.is_overfull = is_too_much and output.finish_reason is None
        if not self._final_only or self._num_unfinished == 0:
            self._ready.set()

    def put_error(self, error: Exception) -> None:
        """End the request: `get` raises `error`, and what was pending is lost."""
        if self._error is None:
            self._error = error
            if self.is_overfull:
                self._pending.clear()
            self._ready.set()

    def nudge(self) -> None:
        """Wake the consumer although nothing new is there; `get` then returns what is pending, perhaps nothing."""
        self._ready.set()

    async def get(self) -> list[ChoiceOutput]:
        """Wait for outputs and take all of them. Raises the error that ended the request."""
        await self._ready.wait()
        self._ready.clear()
        if self._error is not None:
            raise self._error
        if self._final_only and self._num_unfinished:
            return []
        outputs = list(self._pending.values())
        self._pending.clear()
        self._num_pending_bytes = 0
        return outputs

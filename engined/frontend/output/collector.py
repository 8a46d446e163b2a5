"""Where the outputs of one HTTP request wait for their consumer. Frontend process.

The output task puts, one handler takes. A slow consumer costs no memory but its own text: pending deltas of a choice
are merged into one, and when too much is pending behind a client that does not read, the request has to end.
"""

import asyncio
import time

from engined.frontend.output.choice_output import BYTES_PER_CHARACTER, ChoiceOutput

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
        self._is_woken = False
        """Whether `get` has something to return at once."""
        self._waiter: asyncio.Future[None] | None = None
        """Of the consumer that sleeps. An asyncio.Event does the same and takes a microsecond more for each token."""
        self._num_pending_bytes = 0
        self.num_taken_bytes = 0
        """Of what `get` returned last; see ChoiceOutput.num_bytes."""
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
        """Add the next delta of a choice, and wake the consumer."""
        self.add(output)
        self.wake()

    def add(self, output: ChoiceOutput) -> None:
        """Add the next delta of a choice; the consumer sleeps on until `wake`, and what comes before that is merged."""
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
        self._note_bytes(output.num_bytes, is_end=output.finish_reason is not None)

    def add_text(self, index: int, text: str, token_ids: list[int]) -> None:
        """As `add`, for a delta that is not the first one, and has nothing but text: the way of most tokens."""
        if self.is_overfull:
            return
        pending = self._pending.get(index)
        if pending is None:
            self._pending[index] = ChoiceOutput(index=index, text=text, token_ids=token_ids)
        else:
            pending.text += text
            pending.token_ids += token_ids
        self._note_bytes(BYTES_PER_CHARACTER * len(text), is_end=False)

    def _note_bytes(self, num_bytes: int, *, is_end: bool) -> None:
        self._num_pending_bytes += num_bytes
        self.is_overfull = self.is_held_up and self._num_pending_bytes > MAX_PENDING_BYTES and not is_end

    def wake(self) -> None:
        """Let the consumer take what was added."""
        if not self._final_only or self._num_unfinished == 0:
            self.nudge()

    def put_error(self, error: Exception) -> None:
        """End the request: `get` raises `error`, and what was pending is lost."""
        if self._error is None:
            self._error = error
            if self.is_overfull:
                self._pending.clear()
            self.nudge()

    def nudge(self) -> None:
        """Wake the consumer although nothing new is there; `get` then returns what is pending, perhaps nothing."""
        self._is_woken = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> list[ChoiceOutput]:
        """Wait for outputs and take all of them. Raises the error that ended the request."""
        if not self._is_woken:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        self._is_woken = False
        if self._error is not None:
            raise self._error
        if self._final_only and self._num_unfinished:
            return []
        outputs = list(self._pending.values())
        self._pending.clear()
        self.num_taken_bytes, self._num_pending_bytes = self._num_pending_bytes, 0
        return outputs

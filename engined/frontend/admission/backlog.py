"""What was sent to the engine and has not begun there. Frontend process; kept by `OutputProcessor`, asked by `Gate`.

Lines of batches are left out: they wait until nobody else does, and their number is bounded where they come from.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Hashable

from engined.protocol.engine import EngineCoreRequest

MAX_EXPECTED_OUTPUT = 1024
"""Output tokens that a sequence counts with at most: `max_tokens` is a limit, and rarely reached."""
RATE_SAMPLES = 64
RATE_SECONDS = 60.0
"""The rate is that of the last so many requests, as far as they are not older than this."""
UNKNOWN_RATE_SECONDS = 5.0
MAX_RETRY_SECONDS = 60.0
"""OpenAI's clients heed no longer wait."""


def expected_tokens(request: EngineCoreRequest) -> int:
    """Tokens of the prompt, and of the output to be expected."""
    return len(request.prompt_token_ids) + min(request.sampling.max_tokens, MAX_EXPECTED_OUTPUT)


class Backlog:
    """Waiting sequences, by the HTTP request that they belong to, and how fast such requests get their turn.

    Sequences come by `add` and leave by `remove`, once each: when they begin, or when they end without that.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.num_tokens = 0
        self._clock = clock
        self._num_sequences: Counter[Hashable] = Counter()
        self._leaving_times: deque[float] = deque(maxlen=RATE_SAMPLES)

    @property
    def num_requests(self) -> int:
        """HTTP requests with a sequence that waits."""
        return len(self._num_sequences)

    def add(self, owner: Hashable, num_tokens: int) -> None:
        """A sequence of the HTTP request `owner` waits."""
        self._num_sequences[owner] += 1
        self.num_tokens += num_tokens

    def remove(self, owner: Hashable, num_tokens: int) -> None:
        """It waits no more."""
        self.num_tokens -= num_tokens
        self._num_sequences[owner] -= 1
        if not self._num_sequences[owner]:
            del self._num_sequences[owner]
            self._leaving_times.append(self._clock())

    def retry_after(self) -> float:
        """Seconds until half of what waits now will have had its turn, at the rate of the last minute; at most 60.

        Half, so that those who were refused find room when they come again all at once.
        """
        now = self._clock()
        recent = [moment for moment in self._leaving_times if now - moment < RATE_SECONDS]
        if len(recent) < 2:
            return UNKNOWN_RATE_SECONDS
        rate = len(recent) / max(now - recent[0], 0.001)
        return min(self.num_requests / 2 / rate, MAX_RETRY_SECONDS)

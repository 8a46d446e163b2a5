"""Lets HTTP requests in, or refuses them with 429 while that is still cheap. Frontend process; built by `app`.

A request passes twice. At its head nothing of it has been read: what is full already is told at once. When it is
tokenized, its size is known. In between, and until the engine begins with it, it counts as one that waits.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from engined.errors import RequestError
from engined.frontend.access.caller import Caller
from engined.frontend.admission.allowance import Allowance
from engined.frontend.admission.backlog import Backlog, expected_tokens
from engined.protocol.engine import EngineCoreRequest


class Gate:
    """The bounded queue of one frontend, and the allowances of the keys."""

    def __init__(
        self, backlog: Backlog, max_requests: int, max_tokens: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """At most `max_requests` wait, with at most `max_tokens`; but one that finds no others is never too large."""
        self.num_preparing = 0
        """Requests that are in, and not yet sent to the engine."""
        self.num_refused = 0
        """Requests that found the queue full."""
        self.num_limited = 0
        """Requests that a limit of their key refused."""
        self._backlog = backlog
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._clock = clock
        self._allowances: dict[bytes, Allowance] = {}

    @property
    def num_waiting(self) -> int:
        """Requests that the engine has not begun with."""
        return self.num_preparing + self._backlog.num_requests

    @property
    def num_waiting_tokens(self) -> int:
        """What they count with, as far as that is known."""
        return self._backlog.num_tokens

    def allowance(self, caller: Caller) -> Allowance:
        """What a caller has used. New limits, after the keys were read again, begin unused."""
        known = self._allowances.get(caller.key_id)
        if known is None or known.limits != caller.limits:
            allowance = Allowance(caller.name, caller.limits, self._clock)
            self._allowances[caller.key_id] = allowance
            return allowance
        return known

    def enter(self, allowance: Allowance) -> "Place":
        """A place for a request whose head has come. Raises RequestError 429."""
        if self.num_waiting >= self._max_requests:
            raise self._full(f"{self._max_requests} requests wait already (--max-queued-requests)")
        if self._backlog.num_tokens >= self._max_tokens:
            raise self._full(f"requests of {self._max_tokens} tokens wait already (--max-queued-tokens)")
        with self._count_limited():
            allowance.begin()
        return Place(self, allowance)

    def take_tokens(self, allowance: Allowance, num_tokens: int) -> None:
        """Charge a request, now that it is known how large it is.

        Raises RequestError 429 if it is too much besides those that wait, or for its key.
        """
        if self._backlog.num_tokens and self._backlog.num_tokens + num_tokens > self._max_tokens:
            raise self._full(f"this request would make it more than {self._max_tokens} tokens (--max-queued-tokens)")
        with self._count_limited():
            allowance.take_tokens(num_tokens)

    @contextmanager
    def _count_limited(self) -> Iterator[None]:
        try:
            yield
        except RequestError:
            self.num_limited += 1
            raise

    def _full(self, text: str) -> RequestError:
        self.num_refused += 1
        return RequestError(
            f"the queue is full: {text}; try again later",
            status=429,
            type="rate_limit_error",
            code="queue_full",
            retry_after=self._backlog.retry_after(),
        )


class Place:
    """What one HTTP request holds of the queue and of its key's allowance, until it leaves."""

    def __init__(self, gate: Gate, allowance: Allowance) -> None:
        self._gate = gate
        self._allowance = allowance
        self._num_charged_tokens = 0
        self._is_preparing = True
        self._has_left = False
        gate.num_preparing += 1

    def settle(self, requests: Sequence[EngineCoreRequest]) -> None:
        """Go on to the engine, with these sequences: from now on they are in the backlog instead.

        They must be sent before anything else runs, that is, before the next await. Raises RequestError 429.
        """
        num_tokens = sum(map(expected_tokens, requests))
        self._gate.take_tokens(self._allowance, num_tokens)
        self._num_charged_tokens = num_tokens
        self._end_preparing()

    def note_usage(self, num_tokens: int) -> None:
        """The request was answered to its end, with so many tokens in fact. One that breaks off is not paid back."""
        self._allowance.correct_tokens(num_tokens - self._num_charged_tokens)
        self._num_charged_tokens = num_tokens

    def leave(self) -> None:
        """The request is over, in whatever way. Idempotent."""
        if not self._has_left:
            self._has_left = True
            self._end_preparing()
            self._allowance.end()

    def _end_preparing(self) -> None:
        if self._is_preparing:
            self._is_preparing = False
            self._gate.num_preparing -= 1

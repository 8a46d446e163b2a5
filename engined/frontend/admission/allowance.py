"""What the holder of one API key has used of what it may. Frontend process; owned by `Gate`."""

from collections.abc import Callable, Iterator

from engined.config.api_keys import KeyLimits
from engined.errors import RequestError
from engined.frontend.admission.token_bucket import TokenBucket

CONCURRENCY_RETRY_SECONDS = 1.0
"""When one of the caller's own requests will end, it knows better than we."""


class Allowance:
    """The limits of one key, and its use of them. A limit that is None does not exist."""

    def __init__(self, name: str, limits: KeyLimits, clock: Callable[[], float]) -> None:
        self.limits = limits
        self.num_running = 0
        self._name = name
        self._clock = clock
        self._requests = _bucket(limits.requests_per_minute, clock())
        self._tokens = _bucket(limits.tokens_per_minute, clock())

    def begin(self) -> None:
        """A request comes in. Raises RequestError 429 if a limit forbids it, which then counts for nothing."""
        most = self.limits.max_concurrency
        if most is not None and self.num_running >= most:
            raise self._refusal(f"max_concurrency: {most} requests are running already", CONCURRENCY_RETRY_SECONDS)
        self._require(self._tokens, 1, "tokens_per_minute")
        self._require(self._requests, 1, "requests_per_minute")
        if self._requests is not None:
            self._requests.take(1)
        self.num_running += 1

    def end(self) -> None:
        """A request that had begun is over."""
        self.num_running -= 1

    def take_tokens(self, num_tokens: int) -> None:
        """Charge a request for its prompt and the output to be expected. Raises RequestError 429 if it is too much."""
        self._require(self._tokens, num_tokens, "tokens_per_minute")
        if self._tokens is not None:
            self._tokens.take(num_tokens)

    def correct_tokens(self, num_tokens: int) -> None:
        """What it took turned out to be `num_tokens` more than it was charged for; less, if negative."""
        if self._tokens is not None:
            self._tokens.take(num_tokens)

    def headers(self) -> Iterator[tuple[str, str]]:
        """How the limits of a minute stand, in OpenAI's headers."""
        now = self._clock()
        for unit, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if bucket is not None:
                yield f"x-ratelimit-limit-{unit}", str(bucket.per_minute)
                yield f"x-ratelimit-remaining-{unit}", str(bucket.remaining(now))
                yield f"x-ratelimit-reset-{unit}", _duration(bucket.seconds_until_full(now))

    def _require(self, bucket: TokenBucket | None, cost: int, name: str) -> None:
        if bucket is None:
            return
        seconds = bucket.seconds_until(cost, self._clock())
        if seconds > 0:
            raise self._refusal(f"{name}: {bucket.per_minute} of them are used up", seconds)

    def _refusal(self, text: str, retry_after: float) -> RequestError:
        return RequestError(
            f"the key {self._name!r} has reached its {text}",
            status=429,
            type="rate_limit_error",
            code="rate_limit_exceeded",
            retry_after=retry_after,
        )


def _bucket(per_minute: int | None, now: float) -> TokenBucket | None:
    return None if per_minute is None else TokenBucket(per_minute, now)


def _duration(seconds: float) -> str:
    """As OpenAI writes it: "250ms", "1.5s", "6m0s"."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, rest = divmod(round(seconds, 1), 60)
    return f"{int(minutes)}m{rest:.0f}s" if minutes else f"{rest:g}s"

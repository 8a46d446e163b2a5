"""The progress bar of a call. Made and closed by the caller's thread; the engine's thread begins it and moves it on."""

import time
from types import TracebackType

from tqdm import tqdm


class Progress:
    """Counts finished inputs and shows the tokens per second, once there is something to count. A context manager."""

    def __init__(self, unit: str, *, is_shown: bool) -> None:
        self._unit = unit
        self._is_shown = is_shown
        self._bar: tqdm[None] | None = None
        self._started = 0.0
        self._num_tokens = 0

    def begin(self, num_inputs: int) -> None:
        """The inputs are in order, and start to run."""
        self._started = time.monotonic()
        self._bar = tqdm(total=num_inputs, unit=self._unit, disable=not self._is_shown, dynamic_ncols=True)

    def advance(self, num_tokens: int) -> None:
        """One input has finished: `num_tokens` tokens were read and generated for it."""
        assert self._bar is not None
        self._num_tokens += num_tokens
        seconds = max(time.monotonic() - self._started, 1e-9)
        self._bar.set_postfix_str(f"{self._num_tokens / seconds:.0f} tokens/s", refresh=False)
        self._bar.update()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

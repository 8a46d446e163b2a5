"""Whether this frontend takes work: while its engine is ready and it is not draining. Frontend process."""

from collections.abc import Callable

from engined.frontend.async_llm import AsyncLLM
from engined.process.board import DaemonState, serving_state


class Lifecycle:
    """Readiness of one frontend. Draining begins once and never ends."""

    def __init__(self, engine: AsyncLLM, read_state: Callable[[], DaemonState] = serving_state) -> None:
        self._engine = engine
        self._read_state = read_state
        self.is_draining = False

    @property
    def unready_reason(self) -> str | None:
        """Why no new work is taken; None if it is."""
        if self.is_draining:
            return "the server is shutting down"
        return None if self._engine.ready is not None else self._engine.unready_reason

    @property
    def state(self) -> DaemonState:
        """How the whole daemon is doing."""
        return self._read_state()

    def start_draining(self) -> None:
        """From now on new requests are refused."""
        self.is_draining = True

"""What an engine core needs of whatever runs the model. Runs in the EngineCore process."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future

from engined.protocol.plan import GrammarMasks, ModelRunnerOutput, SchedulerOutput


class Executor(ABC):
    """One step is two calls: `execute_model` runs the forward and parks the logits, `sample_tokens` ends the step.
    A step of a pooling model is one call: `execute_model` gives its result.

    Both return at once with a future, so that the core works while the model runs. They are called by one thread, in
    that order. Any exception from a future means that the whole group of ranks is unusable.
    """

    @abstractmethod
    def initialize(self) -> None:
        """Load the weights, allocate the KV cache, warm up. Raises ModelError, StartupError."""

    @abstractmethod
    def watch(self, on_death: Callable[[str], None]) -> None:
        """Have `on_death` called, from any thread, with the cause when a process of the group dies, even at rest."""

    @abstractmethod
    def execute_model(self, plan: SchedulerOutput) -> Future[ModelRunnerOutput | None]:
        """Apply the plan and run the forward; the future is done when the logits are parked, and then holds None.

        Of a pooling model it holds the result.
        """

    @abstractmethod
    def sample_tokens(self, masks: GrammarMasks | None) -> Future[ModelRunnerOutput]:
        """Sample from the parked logits of the last `execute_model`; may be called while that still runs.

        `masks` holds the constrained requests to what their grammars allow now; None if there are none.
        """

    @abstractmethod
    def last_sign_of_life(self, rest_began: float) -> float:
        """When the rank that has been silent longest was last heard of (seconds of CLOCK_MONOTONIC).

        Called while the engine rests, which it does since `rest_began`: nobody was silent before.
        """

    @abstractmethod
    def release_memory(self) -> Future[None]:
        """Let every rank give freed memory back to the system; called when the engine rests."""

    @abstractmethod
    def shutdown(self) -> None:
        """End the workers. Idempotent."""

"""From an ADD message to a request that the scheduler can take. Runs in the core's input thread; holds no state."""

from engined import faults
from engined.cache.block_hash import BlockHasher
from engined.protocol.boot import EngineSettings
from engined.protocol.engine import EngineCoreRequest
from engined.protocol.validation import validate_request
from engined.scheduler.request import Request


class RequestFactory:
    """Checks a message against the model once more, so that nothing a frontend let through can harm a neighbour."""

    def __init__(self, settings: EngineSettings, hasher: BlockHasher | None) -> None:
        self._model_info = settings.model_info
        self._max_model_len = settings.max_model_len
        self._hasher = hasher

    def make(self, message: EngineCoreRequest, client_index: int) -> Request:
        """Build the request, with the block hashes of its prompt. Raises RequestError if a value is out of range."""
        faults.point("request.make")
        validate_request(message, self._model_info, self._max_model_len)
        return Request(message, client_index, self._hasher)

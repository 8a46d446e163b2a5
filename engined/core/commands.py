"""What the busy loop can be asked to do. IO threads and signal handlers put these on the input queue."""

import queue
from dataclasses import dataclass

from engined.grammar.matcher import GrammarMatcher
from engined.protocol.engine import EngineCoreOutputs, EngineFatal, EngineReady, UtilityCall, UtilityResult
from engined.scheduler.request import Request


@dataclass(frozen=True, slots=True)
class AddRequest:
    """A decoded, checked and hashed request of a client."""

    request: Request


@dataclass(frozen=True, slots=True)
class RefuseRequest:
    """A request that does not pass the core's own checks; it ends with this error."""

    client_index: int
    request_id: str
    cause: str


@dataclass(frozen=True, slots=True)
class AbortRequests:
    """A client no longer wants these."""

    client_index: int
    request_ids: list[str]


@dataclass(frozen=True, slots=True)
class ClientGone:
    """A client's link ended: nobody is left to hear about its requests."""

    client_index: int


@dataclass(frozen=True, slots=True)
class CallUtility:
    """A rare operation."""

    client_index: int
    call: UtilityCall


@dataclass(frozen=True, slots=True)
class GrammarCompiled:
    """The grammar of a request is ready, or it is at fault."""

    request: Request
    matcher: GrammarMatcher | None
    cause: str = ""


@dataclass(frozen=True, slots=True)
class ExecutorDied:
    """A process that runs the model is gone, and with it the engine."""

    cause: str


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Leave the loop."""


Command = (
    AddRequest | RefuseRequest | AbortRequests | ClientGone | CallUtility | GrammarCompiled | ExecutorDied | Shutdown
)
InputQueue = queue.SimpleQueue[Command]


@dataclass(frozen=True, slots=True)
class Send:
    """One message for one client, or for all of them when `client_index` is None."""

    client_index: int | None
    message: EngineReady | EngineCoreOutputs | EngineFatal | UtilityResult


OutputQueue = queue.SimpleQueue[Send | None]
"""None ends the output thread once everything before it is sent."""

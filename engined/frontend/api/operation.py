"""What one route takes and answers: the contract between the route classes and /openapi.json. Frontend process.

Each `*Routes` class offers `operations()` beside `register()`. The structs are the very ones that parse the bodies, so
that the description cannot drift from the server.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from msgspec import Struct

from engined.frontend.api.error_body import ErrorResponse

READ_ERRORS = (400, 401, 403, 500, 503)
"""Statuses of a route without a body: a Host or path that is not ours, no key, one without the scope or a web page that
is not allowed, an internal fault, a server that stops."""
BODY_ERRORS = (400, 401, 403, 404, 408, 410, 413, 415, 429, 500, 503)
"""Statuses of a route that reads a JSON body: 404 is an unknown model, 408 a deadline or a body that does not come, 410
a request that an operator ended, 429 a full queue or a key that has used up what it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One value in the path or in the query string."""

    name: str
    description: str
    where: Literal["path", "query"] = "query"
    type: Any = str
    """Any type that msgspec can describe, for example `Annotated[int, Meta(ge=1, le=100)]`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path."""

    method: Literal["GET", "POST", "DELETE"]
    path: str
    """With placeholders as OpenAPI writes them, without patterns: "/v1/models/{model}"."""
    summary: str
    """A few words; the first line of a handler's docstring is a good one."""
    tag: str
    """Heading under which /docs lists it: "Generation", "Pooling", "Batch", "Models", "Operations" ..."""
    description: str = ""
    request: type[Struct] | None = None
    """The struct that parses the body; None if the route reads none."""
    request_media_type: Literal["application/json", "multipart/form-data"] = "application/json"
    example: Mapping[str, Any] | None = None
    """A small body that works, for /docs to begin with. The model may be left out: there is one."""
    parameters: tuple[Parameter, ...] = ()
    """Those of the query, and those of the path that are more than a plain string; placeholders are found in `path`."""
    response: Any = None
    """Type of the JSON body of a 200 (a Struct, or any type that msgspec can describe); None if it is not JSON."""
    response_media_type: str = "application/json"
    events: tuple[Any, ...] = ()
    """Types of the JSON payloads of a stream's events; given only where the route can stream, with `stream: true`."""
    last_event: str | None = None
    """The payload of a stream's last event, where it is not JSON: "[DONE]"."""
    error: type[Struct] = ErrorResponse
    """The shape of every error."""
    error_statuses: tuple[int, ...] = READ_ERRORS
    """Every error status that the route can answer, those of the middlewares included."""

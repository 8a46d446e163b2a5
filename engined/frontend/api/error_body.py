"""The one error shape of every OpenAI-like route, as /openapi.json describes it. Frontend process."""

from msgspec import Struct


class ErrorObject(Struct, kw_only=True):
    """What went wrong."""

    message: str
    """A sentence that names the field and the remedy."""
    type: str
    """invalid_request_error (the client's fault) or server_error."""
    param: str | None
    """The field at fault, for example messages[0].content."""
    code: str | None
    """The machine-readable reason, for example unknown_parameter or context_length_exceeded."""


class ErrorResponse(Struct, kw_only=True):
    """The body of every answer with a status of 400 and above."""

    error: ErrorObject

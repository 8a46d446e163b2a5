"""The one exception of the client."""

from typing import Any

from engined.errors import EnginedError


class ClientError(EnginedError):
    """The server could not be reached, or it answered with an error, before or in the middle of a stream.

    `status` is the HTTP status; None if there was no answer. `code` and `param` are those of the error body.
    """

    exit_code = 1

    def __init__(
        self, message: str, *, status: int | None = None, code: str | int | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.param = param


class ServerUnreachableError(ClientError):
    """Nobody listens there, so no request was sent; or the server did not answer in time."""

    exit_code = 69


def error_from_body(status: int, body: Any) -> ClientError:
    """Build the exception from a parsed body, or from an event of a stream; any shape of body is taken."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return ClientError(f"the server answered with status {status}: {str(body)[:200]}", status=status)
    return ClientError(str(error.get("message", "")), status=status, code=error.get("code"), param=error.get("param"))

"""The output of a batch: one result a line. Pure."""

from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct

ID_PREFIX = "batch_req_"


@dataclass(frozen=True, slots=True, kw_only=True)
class LineAnswer:
    """What a request of a batch was answered with."""

    status: int
    """HTTP status."""
    request_id: str
    body: Any
    """JSON data; of a failure, an object with `error`."""


class ResponsePart(Struct, kw_only=True):
    """The answer, as a result carries it."""

    status_code: int
    request_id: str
    body: Any


class ErrorPart(Struct, kw_only=True):
    """Why a request failed."""

    code: str | None
    message: str


class ResultLine(Struct, kw_only=True):
    """The result of one line. `response` is null if the line never became a request."""

    id: str
    """Says the number of the input line: "batch_req_7"."""
    custom_id: str | None
    response: ResponsePart | None
    error: ErrorPart | None

    @property
    def number(self) -> int | None:
        """The number of the input line."""
        digits = self.id.removeprefix(ID_PREFIX)
        return int(digits) if digits.isdecimal() else None

    @property
    def is_failure(self) -> bool:
        """Whether the request failed."""
        return self.error is not None


def answered(number: int, custom_id: str, answer: LineAnswer) -> ResultLine:
    """The result of a line that was answered, well or badly."""
    response = ResponsePart(status_code=answer.status, request_id=answer.request_id, body=answer.body)
    error = _error_in(answer) if answer.status >= 400 else None
    return ResultLine(id=f"{ID_PREFIX}{number}", custom_id=custom_id, response=response, error=error)


def refused(number: int, custom_id: str | None, error: ErrorPart) -> ResultLine:
    """The result of a line that got no answer."""
    return ResultLine(id=f"{ID_PREFIX}{number}", custom_id=custom_id, response=None, error=error)


def encode_result(result: ResultLine) -> bytes:
    """The line with its end."""
    return msgspec.json.encode(result) + b"\n"


def _error_in(answer: LineAnswer) -> ErrorPart:
    """The error of a body in OpenAI's or Anthropic's form; another body as it is."""
    error = answer.body.get("error") if isinstance(answer.body, dict) else None
    if not isinstance(error, dict):
        return ErrorPart(code=None, message=f"status {answer.status}: {str(answer.body)[:200]}")
    code = error.get("code") or error.get("type")
    return ErrorPart(code=None if code is None else str(code), message=str(error.get("message", "")))

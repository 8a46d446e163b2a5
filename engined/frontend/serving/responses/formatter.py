"""The shape of /v1/responses, whole and as events. Frontend process; one `ResponsesFormatter` a request.

When the response ends, in whatever way, it goes into the store.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from engined.errors import EnginedError, RequestError
from engined.frontend.api import response_events as events
from engined.frontend.api.response_items import MessageItem, OutputItem, OutputText, ResponseLogprob
from engined.frontend.api.response_object import (
    IncompleteDetails,
    InputTokensDetails,
    OutputTokensDetails,
    Response,
    ResponseErrorObject,
    ResponseUsage,
)
from engined.frontend.output.choice_output import ChoiceOutput
from engined.frontend.serving.chat import ChatResult
from engined.frontend.serving.generation import Usage
from engined.frontend.serving.parsed_choices import ParsedChoices
from engined.frontend.serving.responses.output import ResponseOutput
from engined.frontend.serving.responses.store import ResponseRecord
from engined.frontend.serving.sse import KEEP_ALIVE

_INCOMPLETE: dict[str | None, IncompleteDetails] = {
    "length": IncompleteDetails(reason="max_output_tokens"),
    "abort": IncompleteDetails(reason="timeout"),
}
"""By the reason why the choice finished."""


class EventWriter:
    """Numbers the events of one stream, and writes them."""

    def __init__(self) -> None:
        self._num_events = 0

    def write(self, event_list: Iterable[events.ResponseEvent]) -> bytes:
        """The events as they go over the wire."""
        return b"".join(map(self._write, event_list))

    def _write(self, event: events.ResponseEvent) -> bytes:
        event.sequence_number = self._num_events
        self._num_events += 1
        name = str(event.__struct_config__.tag).encode()
        return b"event: " + name + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"


class ResponsesFormatter:
    """Builds the response. `record` is None if it is not stored."""

    terminator = b""
    keep_alive = KEEP_ALIVE

    def __init__(self, response: Response, result: ChatResult, record: ResponseRecord | None) -> None:
        """`response` is the object as it stands before the first token."""
        self._response = response
        self._logprobs = result.logprobs
        self._record = record
        self._parsed = ParsedChoices(result.parsing, 1)
        self._output = ResponseOutput()
        self._writer = EventWriter()
        self._finish_reason: str | None = None

    def begin(self) -> bytes:
        """The events before the first item."""
        return self._writer.write(
            (events.ResponseCreated(response=self._response), events.ResponseInProgress(response=self._response))
        )

    def chunk(self, output: ChoiceOutput, usage: Usage) -> bytes:
        """The events of one delta; nothing if it has neither text nor log-probabilities to show."""
        return self._writer.write(self._take(output, usage))

    def end(self, usage: Usage) -> bytes:
        """The events behind the last delta."""
        last_of_items, response = self._finish(usage)
        is_incomplete = response.status == "incomplete"
        last = events.ResponseIncomplete if is_incomplete else events.ResponseCompleted
        return self._writer.write((*last_of_items, last(response=response)))

    def error(self, error: EnginedError) -> bytes:
        """What failed, and the response with the items that there are."""
        response = msgspec.structs.replace(
            self._response,
            status="failed",
            error=ResponseErrorObject(code="server_error", message=str(error)),
            output=self._output.items("incomplete"),
        )
        self._save(response)
        code, param = (error.code, error.param) if isinstance(error, RequestError) else ("server_error", None)
        return self._writer.write(
            (
                events.ErrorEvent(message=str(error), code=code, param=param),
                events.ResponseFailed(response=response),
            )
        )

    def whole(self, outputs: Sequence[ChoiceOutput], usage: Usage) -> dict[str, Any]:
        """The response object."""
        [output] = outputs
        self._take(output, usage)
        _, response = self._finish(usage)
        whole: dict[str, Any] = msgspec.to_builtins(response)
        return whole

    def _take(self, output: ChoiceOutput, usage: Usage) -> list[events.ResponseEvent]:
        logprobs: list[ResponseLogprob] = []
        if self._logprobs is not None and output.logprobs:
            logprobs = msgspec.convert(self._logprobs.chat_content(output.logprobs), list[ResponseLogprob])
        if output.finish_reason is not None:
            self._finish_reason = output.finish_reason
        return self._output.take(self._parsed.take(output, usage), logprobs)

    def _finish(self, usage: Usage) -> tuple[list[events.ResponseEvent], Response]:
        """The last events of the items, and the response as it ended, which is then in the store."""
        incomplete = _INCOMPLETE.get(self._finish_reason)
        status: Literal["completed", "incomplete"] = "completed" if incomplete is None else "incomplete"
        last_of_items = self._output.finish(status)
        response = msgspec.structs.replace(
            self._response,
            status=status,
            incomplete_details=incomplete,
            completed_at=int(time.time()) if incomplete is None else None,
            output=self._output.items(status),
            usage=_usage(usage),
        )
        self._save(response)
        return last_of_items, response

    def _save(self, response: Response) -> None:
        if self._record is not None:
            self._record.save(response, list(map(_without_logprobs, response.output)))


def _without_logprobs(item: OutputItem) -> OutputItem:
    """The next turn does not need them, and they are far larger than the text."""
    if not isinstance(item, MessageItem):
        return item
    content = [OutputText(text=part.text) if isinstance(part, OutputText) else part for part in item.content]
    return msgspec.structs.replace(item, content=content)


def _usage(usage: Usage) -> ResponseUsage:
    return ResponseUsage(
        input_tokens=usage.num_prompt_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=usage.num_cached_tokens),
        output_tokens=usage.num_completion_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=usage.num_reasoning_tokens),
        total_tokens=usage.num_prompt_tokens + usage.num_completion_tokens,
    )

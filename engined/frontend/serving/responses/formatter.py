"""The shape of /v1/responses, whole and as events. Frontend process; one `ResponsesFormatter` a request.

There is one message with one part of text; when the response ends, in whatever way, it goes into the store.
"""

import time
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from engined.errors import EnginedError, RequestError
from engined.frontend.api import response_events as events
from engined.frontend.api.response_object import (
    IncompleteDetails,
    InputTokensDetails,
    ItemStatus,
    MessageItem,
    OutputText,
    OutputTokensDetails,
    Response,
    ResponseErrorObject,
    ResponseLogprob,
    ResponseUsage,
)
from engined.frontend.output.choice_output import ChoiceOutput
from engined.frontend.output.logprobs import LogprobFormatter
from engined.frontend.serving.generation import Usage
from engined.frontend.serving.responses.items import answer_item, new_message_id
from engined.frontend.serving.responses.store import ResponseRecord
from engined.frontend.serving.sse import KEEP_ALIVE

_INCOMPLETE: dict[str | None, IncompleteDetails] = {
    "length": IncompleteDetails(reason="max_output_tokens"),
    "abort": IncompleteDetails(reason="timeout"),
}
"""By the reason why the choice finished."""


class ResponsesFormatter:
    """Builds the response. `logprobs` is None if the request does not include them, `record` if it is not stored."""

    terminator = b""
    keep_alive = KEEP_ALIVE

    def __init__(self, response: Response, logprobs: LogprobFormatter | None, record: ResponseRecord | None) -> None:
        """`response` is the object as it stands before the first token."""
        self._response = response
        self._logprobs = logprobs
        self._record = record
        self._item_id = new_message_id()
        self._num_events = 0
        self._texts: list[str] = []
        self._text_logprobs: list[ResponseLogprob] = []
        self._finish_reason: str | None = None

    def begin(self) -> bytes:
        """The events before the first piece of text."""
        return b"".join(
            (
                self._event(events.ResponseCreated(response=self._response)),
                self._event(events.ResponseInProgress(response=self._response)),
                self._event(events.OutputItemAdded(item=self._message([], "in_progress"))),
                self._event(events.ContentPartAdded(item_id=self._item_id, part=OutputText(text=""))),
            )
        )

    def chunk(self, output: ChoiceOutput, usage: Usage) -> bytes:
        """One delta; nothing if it has neither text nor log-probabilities."""
        logprobs = self._take(output)
        if not (output.text or logprobs):
            return b""
        return self._event(events.OutputTextDelta(item_id=self._item_id, delta=output.text, logprobs=logprobs))

    def end(self, usage: Usage) -> bytes:
        """The events behind the last delta."""
        response = self._finish(usage)
        [message] = response.output
        part = self._part()
        last: events.ResponseEvent
        if response.status == "incomplete":
            last = events.ResponseIncomplete(response=response)
        else:
            last = events.ResponseCompleted(response=response)
        return b"".join(
            (
                self._event(events.OutputTextDone(item_id=self._item_id, text=part.text, logprobs=part.logprobs)),
                self._event(events.ContentPartDone(item_id=self._item_id, part=part)),
                self._event(events.OutputItemDone(item=message)),
                self._event(last),
            )
        )

    def error(self, error: EnginedError) -> bytes:
        """What failed, and the response with the text that there is."""
        response = msgspec.structs.replace(
            self._response,
            status="failed",
            error=ResponseErrorObject(code="server_error", message=str(error)),
            output=[self._message([self._part()], "incomplete")],
        )
        self._save(response)
        code, param = (error.code, error.param) if isinstance(error, RequestError) else ("server_error", None)
        return self._event(events.ErrorEvent(message=str(error), code=code, param=param)) + self._event(
            events.ResponseFailed(response=response)
        )

    def whole(self, outputs: Sequence[ChoiceOutput], usage: Usage) -> dict[str, Any]:
        """The response object."""
        [output] = outputs
        self._take(output)
        whole: dict[str, Any] = msgspec.to_builtins(self._finish(usage))
        return whole

    def _take(self, output: ChoiceOutput) -> list[ResponseLogprob]:
        logprobs: list[ResponseLogprob] = []
        if self._logprobs is not None and output.logprobs:
            logprobs = msgspec.convert(self._logprobs.chat_content(output.logprobs), list[ResponseLogprob])
        self._texts.append(output.text)
        self._text_logprobs += logprobs
        if output.finish_reason is not None:
            self._finish_reason = output.finish_reason
        return logprobs

    def _finish(self, usage: Usage) -> Response:
        """The response as it ended, which is then in the store."""
        incomplete = _INCOMPLETE.get(self._finish_reason)
        status: Literal["completed", "incomplete"] = "completed" if incomplete is None else "incomplete"
        response = msgspec.structs.replace(
            self._response,
            status=status,
            incomplete_details=incomplete,
            completed_at=int(time.time()) if incomplete is None else None,
            output=[self._message([self._part()], status)],
            usage=_usage(usage),
        )
        self._save(response)
        return response

    def _save(self, response: Response) -> None:
        if self._record is not None:
            status: ItemStatus = "completed" if response.status == "completed" else "incomplete"
            # Without log-probabilities: the next turn does not need them, and they are far larger than the text.
            without_logprobs = self._message([OutputText(text="".join(self._texts))], status)
            self._record.save(response, [without_logprobs])

    def _message(self, content: list[OutputText], status: ItemStatus) -> MessageItem:
        return answer_item(self._item_id, content, status)

    def _part(self) -> OutputText:
        return OutputText(text="".join(self._texts), logprobs=self._text_logprobs)

    def _event(self, event: events.ResponseEvent) -> bytes:
        """Number one event and write it."""
        event.sequence_number = self._num_events
        self._num_events += 1
        name = str(event.__struct_config__.tag).encode()
        return b"event: " + name + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"


def _usage(usage: Usage) -> ResponseUsage:
    return ResponseUsage(
        input_tokens=usage.num_prompt_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=usage.num_cached_tokens),
        output_tokens=usage.num_completion_tokens,
        output_tokens_details=OutputTokensDetails(),
        total_tokens=usage.num_prompt_tokens + usage.num_completion_tokens,
    )

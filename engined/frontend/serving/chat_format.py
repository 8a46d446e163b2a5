"""The shape of chat completions, whole and in chunks. Frontend process; one `ChatFormatter` a request."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from engined import __version__
from engined.errors import EnginedError
from engined.frontend.output.choice_output import ChoiceOutput
from engined.frontend.output.logprobs import LogprobFormatter
from engined.frontend.serving.generation import Usage
from engined.frontend.serving.sse import DONE, KEEP_ALIVE, ChunkWriter, error_event

SYSTEM_FINGERPRINT = f"engined-{__version__}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatShape:
    """What the response of one request contains."""

    response_id: str
    created: int
    model: str
    num_choices: int
    echo_text: str
    has_logprobs: bool
    has_prompt_logprobs: bool
    prompt_token_ids: list[int] | None
    """None unless the request asked for token ids."""
    prompt_text: str | None
    include_usage: bool
    continuous_usage: bool


class ChatFormatter:
    """Builds the response. `logprobs` must be given if the shape has any."""

    terminator = DONE
    keep_alive = KEEP_ALIVE

    def __init__(self, shape: ChatShape, logprobs: LogprobFormatter | None) -> None:
        self._shape = shape
        self._logprobs = logprobs
        self._owes_prompt_logprobs = shape.has_prompt_logprobs
        self._writer = ChunkWriter(
            shape.response_id,
            "chat.completion.chunk",
            shape.created,
            shape.model,
            null_usage=shape.include_usage,
        )

    def begin(self) -> bytes:
        """The role chunk of every choice, and the echo where it was asked for."""
        prompt = self._prompt_fields()
        extra = b"," + orjson.dumps(prompt)[1:-1] if prompt else b""
        chunks = []
        for index in range(self._shape.num_choices):
            chunks.append(self._chunk(index, {"role": "assistant", "content": ""}, extra=extra))
            if self._shape.echo_text:
                chunks.append(self._chunk(index, {"content": self._shape.echo_text}))
        return b"".join(chunks)

    def chunk(self, output: ChoiceOutput, usage: Usage) -> bytes:
        """One delta; nothing if it has neither text nor anything else to say."""
        shape = self._shape
        has_token_ids = shape.prompt_token_ids is not None and output.token_ids
        has_logprobs = (shape.has_logprobs and output.logprobs) or (self._owes_prompt_logprobs and output.index == 0)
        if not (output.text or output.finish_reason or has_token_ids or has_logprobs):
            return b""
        choice: dict[str, Any] = {
            "index": output.index,
            "delta": {"content": output.text} if output.text else {},
            "logprobs": self._content_logprobs(output) if shape.has_logprobs else None,
            "finish_reason": output.finish_reason,
        }
        if output.finish_reason is not None:
            choice["stop_reason"] = output.stop_reason
        if has_token_ids:
            choice["token_ids"] = output.token_ids
        extra = self._take_prompt_logprobs(output)
        return self._writer.choice(choice, usage.as_dict() if shape.continuous_usage else None, extra)

    def end(self, usage: Usage) -> bytes:
        """The usage chunk, if the request wants one."""
        return self._writer.usage(usage.as_dict()) if self._shape.include_usage else b""

    def error(self, error: EnginedError) -> bytes:
        """The error event."""
        return error_event(error)

    def whole(self, outputs: Sequence[ChoiceOutput], usage: Usage) -> dict[str, Any]:
        """The response object."""
        shape = self._shape
        response: dict[str, Any] = {
            "id": shape.response_id,
            "object": "chat.completion",
            "created": shape.created,
            "model": shape.model,
            "choices": [self._choice(output) for output in outputs],
            "usage": usage.as_dict(),
            "system_fingerprint": SYSTEM_FINGERPRINT,
            **self._prompt_fields(),
        }
        if shape.has_prompt_logprobs and self._logprobs is not None:
            response["prompt_logprobs"] = self._logprobs.prompt(outputs[0].prompt_logprobs)
        return response

    def _choice(self, output: ChoiceOutput) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": output.index,
            "message": {
                "role": "assistant",
                "content": self._shape.echo_text + output.text,
                "refusal": None,
                "annotations": [],
            },
            "logprobs": self._content_logprobs(output) if self._shape.has_logprobs else None,
            "finish_reason": output.finish_reason,
            "stop_reason": output.stop_reason,
        }
        if self._shape.prompt_token_ids is not None:
            choice["token_ids"] = output.token_ids
        return choice

    def _take_prompt_logprobs(self, output: ChoiceOutput) -> bytes:
        """They stand at the top level, as in the whole response, and come once: with the first choice's first delta."""
        if not self._owes_prompt_logprobs or output.index != 0:
            return b""
        self._owes_prompt_logprobs = False
        assert self._logprobs is not None
        return b',"prompt_logprobs":' + orjson.dumps(self._logprobs.prompt(output.prompt_logprobs))

    def _chunk(self, index: int, delta: dict[str, str], extra: bytes = b"") -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return self._writer.choice(choice, None, extra)

    def _content_logprobs(self, output: ChoiceOutput) -> dict[str, Any]:
        assert self._logprobs is not None
        return {"content": self._logprobs.chat_content(output.logprobs), "refusal": None}

    def _prompt_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        if self._shape.prompt_token_ids is not None:
            fields["prompt_token_ids"] = self._shape.prompt_token_ids
        if self._shape.prompt_text is not None:
            fields["prompt_text"] = self._shape.prompt_text
        return fields

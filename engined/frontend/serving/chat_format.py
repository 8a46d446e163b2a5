"""The shape of chat completions, whole and in chunks. Frontend process; one `ChatFormatter` a request."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from engined import __version__
from engined.errors import EnginedError
from engined.frontend.output.choice_output import ChoiceOutput
from engined.frontend.output.logprobs import LogprobFormatter
from engined.frontend.parsing.plain import PlainParser
from engined.frontend.serving.chat_answer import Delta, chat_deltas, chat_message
from engined.frontend.serving.generation import Usage
from engined.frontend.serving.parsed_choices import MessageParsing, ParsedChoices
from engined.frontend.serving.sse import DONE, KEEP_ALIVE, TEXT, ChunkWriter, TextChunks, error_event

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
    has_token_ids: bool
    """Those of the answer."""
    prompt_token_ids: list[int] | None
    """None unless the request asked for token ids."""
    prompt_text: str | None
    include_usage: bool
    continuous_usage: bool


class ChatFormatter:
    """Builds the response. `logprobs` must be given if the shape has any."""

    terminator = DONE
    keep_alive = KEEP_ALIVE

    def __init__(self, shape: ChatShape, logprobs: LogprobFormatter | None, parsing: MessageParsing) -> None:
        self._shape = shape
        self._logprobs = logprobs
        self._parsed = ParsedChoices(parsing, shape.num_choices)
        self._includes_reasoning = parsing.includes_reasoning
        self._is_plain = isinstance(parsing.new_parser(), PlainParser)
        self._owes_prompt_logprobs = shape.has_prompt_logprobs
        self._writer = ChunkWriter(
            shape.response_id,
            "chat.completion.chunk",
            shape.created,
            shape.model,
            null_usage=shape.include_usage,
        )
        self._texts = TextChunks(self._writer, {"delta": {"content": TEXT}, "logprobs": None, "finish_reason": None})
        self._has_only_text = self._is_plain and not (
            shape.has_logprobs or shape.has_prompt_logprobs or shape.has_token_ids or shape.continuous_usage
        )
        """Whether all but the last chunk of a choice are alike, text apart."""

    def begin(self) -> bytes:
        """The role chunk of every choice, and the echo where it was asked for."""
        prompt = self._prompt_fields()
        extra = b"," + orjson.dumps(prompt)[1:-1] if prompt else b""
        # Whoever adds up the deltas must not find content where only tools are called.
        delta = {"role": "assistant", "content": "" if self._is_plain else None}
        chunks = []
        for index in range(self._shape.num_choices):
            chunks.append(self._chunk(index, delta, extra=extra))
            if self._shape.echo_text:
                chunks.append(self._chunk(index, {"content": self._shape.echo_text}))
        return b"".join(chunks)

    def chunk(self, output: ChoiceOutput, usage: Usage) -> bytes:
        """A chunk for each kind of thing that came; nothing if that is nothing."""
        if self._has_only_text and output.finish_reason is None:  # the way of most tokens
            return self._texts.chunk(output.index, output.text)
        if self._is_plain:
            return self._last_chunk(output, {"content": output.text} if output.text else {}, usage)
        deltas = chat_deltas(self._parsed.take(output, usage))
        message = self._parsed.messages[output.index]
        if output.finish_reason is not None and not (self._shape.echo_text or message.content or message.calls):
            deltas.append({"content": ""})
        *earlier, delta = deltas or [{}]
        return b"".join(self._chunk(output.index, piece) for piece in earlier) + self._last_chunk(output, delta, usage)

    def end(self, usage: Usage) -> bytes:
        """The usage chunk, if the request wants one."""
        return self._writer.usage(_usage_object(usage)) if self._shape.include_usage else b""

    def error(self, error: EnginedError) -> bytes:
        """The error event."""
        return error_event(error)

    def whole(self, outputs: Sequence[ChoiceOutput], usage: Usage) -> dict[str, Any]:
        """The response object."""
        shape = self._shape
        choices = [self._choice(output, usage) for output in outputs]
        response: dict[str, Any] = {
            "id": shape.response_id,
            "object": "chat.completion",
            "created": shape.created,
            "model": shape.model,
            "choices": choices,
            "usage": _usage_object(usage),
            "system_fingerprint": SYSTEM_FINGERPRINT,
            **self._prompt_fields(),
        }
        if shape.has_prompt_logprobs and self._logprobs is not None:
            response["prompt_logprobs"] = self._logprobs.prompt(outputs[0].prompt_logprobs)
        return response

    def _last_chunk(self, output: ChoiceOutput, delta: Delta, usage: Usage) -> bytes:
        """The last delta of an output, with what belongs to the output as a whole."""
        shape = self._shape
        has_token_ids = shape.has_token_ids and output.token_ids
        has_logprobs = (shape.has_logprobs and output.logprobs) or (self._owes_prompt_logprobs and output.index == 0)
        if not (delta or output.finish_reason or has_token_ids or has_logprobs):
            return b""
        choice: dict[str, Any] = {
            "index": output.index,
            "delta": delta,
            "logprobs": self._content_logprobs(output) if shape.has_logprobs else None,
            "finish_reason": None,
        }
        if output.finish_reason is not None:
            choice["finish_reason"] = self._parsed.finish_reason(output)
            choice["stop_reason"] = output.stop_reason
        if has_token_ids:
            choice["token_ids"] = output.token_ids
        extra = self._take_prompt_logprobs(output)
        return self._writer.choice(choice, _usage_object(usage) if shape.continuous_usage else None, extra)

    def _choice(self, output: ChoiceOutput, usage: Usage) -> dict[str, Any]:
        self._parsed.take(output, usage)
        message = chat_message(self._parsed.messages[output.index], self._shape.echo_text)
        if not self._includes_reasoning:
            message.pop("reasoning_content", None)
        choice: dict[str, Any] = {
            "index": output.index,
            "message": message,
            "logprobs": self._content_logprobs(output) if self._shape.has_logprobs else None,
            "finish_reason": self._parsed.finish_reason(output),
            "stop_reason": output.stop_reason,
        }
        if self._shape.has_token_ids:
            choice["token_ids"] = output.token_ids
        return choice

    def _take_prompt_logprobs(self, output: ChoiceOutput) -> bytes:
        """They stand at the top level, as in the whole response, and come once: with the first choice's first delta."""
        if not self._owes_prompt_logprobs or output.index != 0:
            return b""
        self._owes_prompt_logprobs = False
        assert self._logprobs is not None
        return b',"prompt_logprobs":' + orjson.dumps(self._logprobs.prompt(output.prompt_logprobs))

    def _chunk(self, index: int, delta: Delta, extra: bytes = b"") -> bytes:
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


def _usage_object(usage: Usage) -> dict[str, Any]:
    details = {"reasoning_tokens": usage.num_reasoning_tokens}
    return {**usage.as_dict(), "completion_tokens_details": details}

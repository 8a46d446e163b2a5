"""The shape of completions, whole and in chunks. Frontend process; one `CompletionFormatter` a request."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engined import __version__
from engined.errors import EnginedError
from engined.frontend.output.choice_output import ChoiceOutput
from engined.frontend.output.logprobs import LogprobFormatter
from engined.frontend.serving.generation import Usage
from engined.frontend.serving.sse import DONE, KEEP_ALIVE, TEXT, ChunkWriter, TextChunks, error_event
from engined.protocol.engine import TokenLogprobs

SYSTEM_FINGERPRINT = f"engined-{__version__}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EchoedPrompt:
    """A prompt as it is given back. `text_offsets[i]` is where its token i begins, in characters."""

    token_ids: list[int]
    text: str
    text_offsets: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionShape:
    """What the response of one request contains."""

    response_id: str
    created: int
    model: str
    choices_per_prompt: int
    prompts: list[EchoedPrompt] | None
    """With `echo`: the prompts, which begin the text of their choices."""
    has_logprobs: bool
    has_prompt_logprobs: bool
    returned_prompt_ids: list[list[int]] | None
    """With `return_token_ids`: the ids of each prompt."""
    returned_prompt_texts: list[str] | None
    """With `return_prompt_text`."""
    include_usage: bool
    continuous_usage: bool


class CompletionFormatter:
    """Builds the response. `logprobs` must be given if the shape has any."""

    terminator = DONE
    keep_alive = KEEP_ALIVE

    def __init__(self, shape: CompletionShape, logprobs: LogprobFormatter | None) -> None:
        self._shape = shape
        self._logprobs = logprobs
        self._begun: set[int] = set()
        self._writer = ChunkWriter(
            shape.response_id, "text_completion", shape.created, shape.model, null_usage=shape.include_usage
        )
        self._texts = TextChunks(self._writer, {"text": TEXT, "logprobs": None, "finish_reason": None})
        self._has_only_text = not (
            shape.prompts is not None
            or shape.has_logprobs
            or shape.has_prompt_logprobs
            or shape.returned_prompt_ids is not None
            or shape.returned_prompt_texts is not None
            or shape.continuous_usage
        )
        """Whether all but the last chunk of a choice are alike, text apart."""

    def begin(self) -> bytes:
        """Nothing: completions have no role chunk, and an echo is part of the first delta."""
        return b""

    def chunk(self, output: ChoiceOutput, usage: Usage) -> bytes:
        """One delta; nothing if it has neither text nor anything else to say."""
        if self._has_only_text and output.finish_reason is None:
            return self._texts.chunk(output.index, output.text)
        shape = self._shape
        is_first = output.index not in self._begun
        wants_tokens = (shape.has_logprobs or shape.returned_prompt_ids is not None) and output.token_ids
        begins = is_first and (
            shape.prompts is not None or shape.returned_prompt_ids is not None or shape.has_prompt_logprobs
        )
        if not (output.text or output.finish_reason or wants_tokens or begins):
            return b""
        self._begun.add(output.index)
        choice = self._choice(output, is_first=is_first)
        return self._writer.choice(choice, usage.as_dict() if shape.continuous_usage else None)

    def end(self, usage: Usage) -> bytes:
        """The usage chunk, if the request wants one."""
        return self._writer.usage(usage.as_dict()) if self._shape.include_usage else b""

    def error(self, error: EnginedError) -> bytes:
        """The error event."""
        return error_event(error)

    def whole(self, outputs: Sequence[ChoiceOutput], usage: Usage) -> dict[str, Any]:
        """The response object."""
        return {
            "id": self._shape.response_id,
            "object": "text_completion",
            "created": self._shape.created,
            "model": self._shape.model,
            "choices": [self._choice(output, is_first=True) for output in outputs],
            "usage": usage.as_dict(),
            "system_fingerprint": SYSTEM_FINGERPRINT,
        }

    def _choice(self, output: ChoiceOutput, *, is_first: bool) -> dict[str, Any]:
        shape = self._shape
        prompt_index = output.index // shape.choices_per_prompt
        echoed = shape.prompts[prompt_index] if shape.prompts is not None else None
        choice: dict[str, Any] = {
            "index": output.index,
            "text": (echoed.text if echoed is not None and is_first else "") + output.text,
            "logprobs": self._arrays(output, echoed, is_first=is_first) if shape.has_logprobs else None,
            "finish_reason": output.finish_reason,
        }
        if output.finish_reason is not None:
            choice["stop_reason"] = output.stop_reason
        if shape.returned_prompt_ids is not None:
            choice["token_ids"] = output.token_ids
            if is_first:
                choice["prompt_token_ids"] = shape.returned_prompt_ids[prompt_index]
        if shape.returned_prompt_texts is not None and is_first:
            choice["prompt_text"] = shape.returned_prompt_texts[prompt_index]
        if shape.has_prompt_logprobs and self._logprobs is not None and is_first:
            choice["prompt_logprobs"] = self._logprobs.prompt(output.prompt_logprobs)
        return choice

    def _arrays(self, output: ChoiceOutput, echoed: EchoedPrompt | None, *, is_first: bool) -> dict[str, Any]:
        assert self._logprobs is not None
        start = len(echoed.text) if echoed is not None else 0
        offsets = [start + offset for offset in output.text_offsets]
        entries: list[TokenLogprobs | None] = list(output.logprobs)
        token_ids = output.token_ids
        if echoed is not None and is_first:
            # A deadline may end a choice before its whole prompt has been scored.
            num_missing = len(echoed.token_ids) - 1 - len(output.prompt_logprobs)
            entries = [None, *output.prompt_logprobs, *[None] * num_missing, *entries]
            offsets = echoed.text_offsets + offsets
            token_ids = echoed.token_ids + token_ids
        return self._logprobs.completion(entries, offsets, token_ids)

"""What the methods of `LLM` return, made of the frontend's outputs. The names are vLLM's. Caller's process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engined.frontend.output.choice_output import ChoiceOutput
from engined.frontend.output.logprobs import ranked_pairs
from engined.frontend.serving.generation import Generation
from engined.protocol.engine import TokenLogprobs
from engined.tokenization.tokenizer import ModelTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprob:
    """One token at one position."""

    logprob: float
    """Natural logarithm; -9999.0 for an impossible token."""
    rank: int
    """Among the whole vocabulary; the most probable token has rank 1."""
    decoded_token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """One answer."""

    index: int
    """Its number among the `n` answers of its prompt."""
    text: str
    """As generated; of a chat, tool calls and reasoning stand in it with their tags."""
    token_ids: list[int]
    cumulative_logprob: float | None
    """Sum over the generated tokens; None unless logprobs were asked for."""
    logprobs: list[dict[int, Logprob]] | None
    """For each generated token, it and its alternatives, by token id and the most probable first."""
    finish_reason: str
    """"stop" or "length", or "tool_calls" where the model of a chat called tools."""
    stop_reason: str | int | None
    """The stop string or stop token id that ended it; None for the end of the text and for the length."""
    message: dict[str, Any] | None = None
    """Of a chat, what the model said as a message, which may be appended to the conversation: `role`, `content`, and
    `tool_calls` and `reasoning_content` if there are any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """One prompt with its answers."""

    request_id: str
    prompt: str | None
    """The text; of a conversation, as the chat template made it. None if the prompt was given as token ids."""
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    """As for an answer, but the first token of a prompt has none."""
    outputs: list[CompletionOutput]
    num_cached_tokens: int
    """Tokens of the prompt that were read from the prefix cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingOutput:
    """One text with its vector."""

    embedding: list[float]
    prompt_token_ids: list[int]


def request_output(
    generation: Generation, prompt: str | None, choices: Sequence[ChoiceOutput], tokenizer: ModelTokenizer
) -> RequestOutput:
    """The result of a generation that has ended; `choices[i]` is answer i."""
    request = generation.requests[0]
    has_logprobs = request.sampling.logprobs is not None
    prompt_logprobs = None
    if request.sampling.prompt_logprobs is not None:
        prompt_logprobs = [None, *(_alternatives(entry, tokenizer) for entry in choices[0].prompt_logprobs)]
    return RequestOutput(
        request_id=generation.response_id,
        prompt=prompt,
        prompt_token_ids=request.prompt_token_ids,
        prompt_logprobs=prompt_logprobs,
        outputs=[_completion_output(choice, tokenizer, has_logprobs=has_logprobs) for choice in choices],
        num_cached_tokens=generation.usage.num_cached_tokens,
    )


def add_messages(output: RequestOutput, choices: Sequence[Mapping[str, Any]]) -> RequestOutput:
    """The same output with the messages of a chat; `choices[i]` is answer i in the form of the HTTP API."""
    answers = [
        replace(answer, message=_said(choice["message"]), finish_reason=choice["finish_reason"])
        for answer, choice in zip(output.outputs, choices, strict=True)
    ]
    return replace(output, outputs=answers)


def _said(message: Mapping[str, Any]) -> dict[str, Any]:
    said = ("role", "content", "reasoning_content", "tool_calls")
    return {name: message[name] for name in said if name in message}


def _completion_output(choice: ChoiceOutput, tokenizer: ModelTokenizer, *, has_logprobs: bool) -> CompletionOutput:
    assert choice.finish_reason is not None
    return CompletionOutput(
        index=choice.index,
        text=choice.text,
        token_ids=choice.token_ids,
        cumulative_logprob=sum(entry.logprobs[0] for entry in choice.logprobs) if has_logprobs else None,
        logprobs=[_alternatives(entry, tokenizer) for entry in choice.logprobs] if has_logprobs else None,
        finish_reason=choice.finish_reason,
        stop_reason=choice.stop_reason,
    )


def _alternatives(entry: TokenLogprobs, tokenizer: ModelTokenizer) -> dict[int, Logprob]:
    pairs = ranked_pairs(entry)
    ranks = {token_id: rank for rank, (token_id, _) in enumerate(pairs, start=1)}
    # Only the token that stands there may have a rank beyond its place in the list.
    ranks[entry.token_ids[0]] = entry.rank
    return {
        token_id: Logprob(logprob=logprob, rank=ranks[token_id], decoded_token=tokenizer.token_text(token_id))
        for token_id, logprob in pairs
    }

"""From what a Python caller passes to the requests that the HTTP routes work with. Caller's process; pure.

What is wrong with it is a RequestError, as it is over HTTP, and names the prompt by its place in the list.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypedDict, TypeGuard, TypeVar, cast

from engined.errors import RequestError
from engined.frontend.api.chat import ChatCompletionRequest
from engined.frontend.api.completions import CompletionRequest
from engined.frontend.api.parser import BodyParser
from engined.frontend.api.pooling import EmbeddingRequest, ScoreRequest
from engined.offline.sampling_params import SamplingParams

Prompt = str | Sequence[int]
"""A text, or token ids, which are taken as they are."""
Message = Mapping[str, Any]
"""As in the HTTP API: {"role": "user", "content": "..."}."""
Conversation = Sequence[Message]
T = TypeVar("T")

_COMPLETIONS = BodyParser(CompletionRequest)
_CHATS = BodyParser(ChatCompletionRequest)
_EMBEDDINGS = BodyParser(EmbeddingRequest)
_SCORES = BodyParser(ScoreRequest)


class ChatFields(TypedDict, total=False):
    """How conversations are rendered, and what may be answered; each is the HTTP field of that name."""

    add_generation_prompt: bool | None
    continue_final_message: bool | None
    chat_template_kwargs: Mapping[str, Any] | None
    tools: Sequence[Mapping[str, Any]] | None
    tool_choice: str | Mapping[str, Any] | None
    parallel_tool_calls: bool | None
    reasoning_effort: str | None


@dataclass(frozen=True, slots=True)
class Inputs(Generic[T]):
    """What one call works on, in order. `name` is that of the argument, for errors; None if it was not a list."""

    items: Sequence[T]
    name: str | None

    @contextmanager
    def at(self, index: int) -> Iterator[None]:
        """RequestErrors of this block are about item `index`, and say so."""
        try:
            yield
        except RequestError as error:
            if self.name is not None:
                error.args = (f"{self.name}[{index}]: {error}",)
            raise


def as_prompts(prompts: Prompt | Sequence[Prompt], name: str) -> Inputs[Prompt]:
    """One text, one list of token ids, or a list of either. Raises RequestError for anything else."""
    if isinstance(prompts, str) or (_is_ids(prompts) and prompts):
        return Inputs([cast(Prompt, prompts)], None)
    if not _is_list(prompts):
        raise RequestError(f"{name} must be a text, token ids, or a list of them, not {_kind(prompts)}", param=name)
    for index, prompt in enumerate(prompts):
        if not isinstance(prompt, str) and not _is_ids(prompt):
            raise RequestError(f"{name}[{index}] must be a text or token ids, not {_kind(prompt)}", param=name)
    return Inputs(cast("Sequence[Prompt]", prompts), name)


def as_conversations(messages: Conversation | Sequence[Conversation]) -> Inputs[Conversation]:
    """One conversation or a list of them. Raises RequestError for anything else."""
    if not _is_list(messages):
        raise RequestError(f"messages must be a list of messages, not {_kind(messages)}", param="messages")
    if messages and all(isinstance(message, Mapping) for message in messages):
        return Inputs([cast(Conversation, messages)], None)
    for index, conversation in enumerate(messages):
        if not _is_list(conversation):
            raise RequestError(
                f"messages[{index}] must be a list of messages, not {_kind(conversation)}", param="messages"
            )
    return Inputs(cast("Sequence[Conversation]", messages), "messages")


def as_pairs(text_1: str | Sequence[str], text_2: str | Sequence[str]) -> Inputs[tuple[str, str]]:
    """Pairs of texts. Raises RequestError if the lists have different lengths."""
    second = [text_2] if isinstance(text_2, str) else list(text_2)
    first = [text_1] * len(second) if isinstance(text_1, str) else list(text_1)
    if len(first) == 1:
        first *= len(second)
    if len(first) != len(second):
        raise RequestError(
            f"text_1 has {len(first)} texts and text_2 {len(second)}: give one, or one for each", param="text_1"
        )
    return Inputs(list(zip(first, second, strict=True)), None if isinstance(text_2, str) else "text_2")


def one_for_each(params: SamplingParams | Sequence[SamplingParams] | None, num_inputs: int) -> list[SamplingParams]:
    """The settings of each input. Raises RequestError if there are more or fewer."""
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * num_inputs
    if not isinstance(params, Sequence) or not all(isinstance(item, SamplingParams) for item in params):
        raise RequestError("sampling_params must be a SamplingParams, or one for each input", param="sampling_params")
    if len(params) != num_inputs:
        raise RequestError(
            f"sampling_params has {len(params)} entries for {num_inputs} inputs: give one, or one for each",
            param="sampling_params",
        )
    return list(params)


def completion_request(prompt: Prompt, params: SamplingParams) -> CompletionRequest:
    """What POST /v1/completions would get. Raises RequestError."""
    return _COMPLETIONS.convert({"prompt": prompt, **_fields(params)})


def check_chat_fields(fields: ChatFields) -> None:
    """Raises TypeError for a name that is none of them, as for any keyword argument that a function does not have."""
    for name in fields:
        if name not in ChatFields.__annotations__:
            raise TypeError(f"LLM.chat() got an unexpected keyword argument {name!r}")


def chat_request(messages: Conversation, params: SamplingParams, chat_fields: ChatFields) -> ChatCompletionRequest:
    """What POST /v1/chat/completions would get. Raises RequestError."""
    fields = _fields(params)
    if "logprobs" in fields:
        fields |= {"top_logprobs": fields["logprobs"], "logprobs": True}
    return _CHATS.convert({"messages": messages, **fields, **chat_fields})


def embedding_request(text: Prompt, options: Mapping[str, Any]) -> EmbeddingRequest:
    """What POST /v1/embeddings would get. Raises RequestError."""
    return _EMBEDDINGS.convert({"input": text, **options})


def score_request(text_1: str, text_2: str) -> ScoreRequest:
    """What POST /v1/score would get. Raises RequestError."""
    return _SCORES.convert({"text_1": text_1, "text_2": text_2})


def _fields(params: SamplingParams) -> dict[str, Any]:
    fields = params.given()
    if isinstance(fields.get("logit_bias"), Mapping):
        fields["logit_bias"] = {str(token_id): bias for token_id, bias in fields["logit_bias"].items()}
    return fields


def _is_ids(value: object) -> bool:
    return _is_list(value) and all(type(item) is int for item in value)


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def _kind(value: object) -> str:
    return type(value).__name__

"""Fields that both generation endpoints share. Types are exact: true is not 1, "5" is not 5, null means not given.

Three kinds: fields that are honoured; fields of OpenAI's API that need nothing of a local server and are accepted; and
fields for which engined has nothing yet, which are refused by name with the remedy, never ignored.
"""

from typing import Literal

from msgspec import UNSET, Raw, Struct, UnsetType

Unsupported = Raw | UnsetType


class StreamOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    """What a stream says besides the text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class ResponseFormat(Struct, kw_only=True, forbid_unknown_fields=True):
    """Only plain text for now."""

    type: str
    json_schema: Unsupported = UNSET
    schema: Unsupported = UNSET


class AcceptedFields(Struct, kw_only=True, forbid_unknown_fields=True):
    """Taken without effect: bookkeeping of OpenAI's own service."""

    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    parallel_tool_calls: bool | None = None


class UnsupportedFields(AcceptedFields, kw_only=True, forbid_unknown_fields=True):
    """Known, but not implemented; see REMEDIES."""

    tools: Unsupported = UNSET
    functions: Unsupported = UNSET
    function_call: Unsupported = UNSET
    audio: Unsupported = UNSET
    prediction: Unsupported = UNSET
    web_search_options: Unsupported = UNSET
    moderation: Unsupported = UNSET
    verbosity: Unsupported = UNSET
    suffix: Unsupported = UNSET
    structured_outputs: Unsupported = UNSET
    guided_json: Unsupported = UNSET
    guided_regex: Unsupported = UNSET
    guided_choice: Unsupported = UNSET
    guided_grammar: Unsupported = UNSET
    prompt_embeds: Unsupported = UNSET
    length_penalty: Unsupported = UNSET
    logprob_token_ids: Unsupported = UNSET
    documents: Unsupported = UNSET
    chat_template: Unsupported = UNSET
    mm_processor_kwargs: Unsupported = UNSET
    media_io_kwargs: Unsupported = UNSET
    session_id: Unsupported = UNSET
    kv_transfer_params: Unsupported = UNSET
    vllm_xargs: Unsupported = UNSET
    include_reasoning: Unsupported = UNSET
    thinking_token_budget: Unsupported = UNSET
    repetition_detection: Unsupported = UNSET


_NO_TOOLS = "tool calling is not available yet; leave it out and describe the tool in a message"
_NO_GRAMMAR = "structured output is not available yet; leave it out and ask for the format in the prompt"
_NO_MEDIA = "the model reads and writes text only; leave it out"
_LEAVE_OUT = "leave it out"
REMEDIES = {
    **dict.fromkeys(("tools", "functions", "function_call", "tool_choice"), _NO_TOOLS),
    **dict.fromkeys(
        ("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"), _NO_GRAMMAR
    ),
    **dict.fromkeys(("audio", "modalities", "mm_processor_kwargs", "media_io_kwargs"), _NO_MEDIA),
    "response_format": _NO_GRAMMAR,
    "chat_template": "start engined with --chat-template FILE instead",
    "suffix": "the model has no fill-in-the-middle format; put everything into prompt",
    "prompt_embeds": "send prompt as text or token ids",
    "best_of": "use n and choose among the answers",
    "use_beam_search": "use n with a temperature above 0",
    "documents": "put the documents into a message",
}
"""What a client can do instead; every other unsupported field can only be left out."""


def remedy(name: str) -> str:
    """What to do instead of using the unsupported field `name`."""
    return REMEDIES.get(name, _LEAVE_OUT)


class GenerationFields(UnsupportedFields, kw_only=True, forbid_unknown_fields=True):
    """How to generate; the same in both endpoints."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    response_format: ResponseFormat | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    prompt_logprobs: int | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None
    priority: int | None = None
    request_id: str | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    return_prompt_text: bool | None = None
    cache_salt: str | None = None
    stream_interval: int | None = None
    best_of: int | None = None
    use_beam_search: bool | None = None

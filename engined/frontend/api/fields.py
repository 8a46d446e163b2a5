"""Fields that both generation endpoints share. Types are exact: true is not 1, "5" is not 5, null means not given.

Each declaration carries a note of how the field is treated; see `support`.
"""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct

from engined.frontend.api.constraints import ResponseFormat, StructuredOutputs
from engined.frontend.api.support import Unsupported, accepted, honoured, refused

NO_MEDIA = "the model reads and writes text only; leave it out"
LEAVE_OUT = "leave it out"

MAX_CHOICES = 128
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_LENGTH = 256
MAX_BAD_WORDS = 64
MAX_BAD_WORD_LENGTH = 256
MAX_STREAM_INTERVAL = 1024
MAX_PRIORITY = 2**31
MAX_TIMEOUT_SECONDS = 86_400


class StreamOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    """What a stream says besides the text."""

    include_usage: Annotated[bool | None, honoured("One last chunk with the usage and no choices.")] = None
    continuous_usage_stats: Annotated[bool | None, honoured("The usage so far in every chunk.")] = None
    include_obfuscation: Annotated[bool | None, accepted("engined never pads its chunks.")] = None


class AcceptedFields(Struct, kw_only=True, forbid_unknown_fields=True):
    """Taken without effect: bookkeeping of OpenAI's own service."""

    user: Annotated[str | None, accepted("one local server knows no users.")] = None
    metadata: Annotated[
        Annotated[dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)]
        | None,
        accepted("answers are not stored."),
    ] = None
    store: Annotated[bool | None, accepted("answers are not stored.")] = None
    service_tier: Annotated[
        Literal["auto", "default", "flex", "scale", "priority", "fast"] | None, accepted("there is one tier.")
    ] = None
    safety_identifier: Annotated[Annotated[str, Meta(max_length=64)] | None, accepted("nobody is reported.")] = None
    prompt_cache_key: Annotated[str | None, accepted("the prefix cache finds every prompt by its tokens.")] = None
    prompt_cache_retention: Annotated[str | None, accepted("cached blocks stay until their room is needed.")] = None
    session_id: Annotated[str | None, accepted("there is one engine, so a session always meets the same.")] = None


class RefusedFields(AcceptedFields, kw_only=True, forbid_unknown_fields=True):
    """Known, but not implemented: refused by name, never ignored."""

    guided_json: Annotated[Unsupported, refused("send structured_outputs.json instead")] = UNSET
    guided_regex: Annotated[Unsupported, refused("send structured_outputs.regex instead")] = UNSET
    guided_choice: Annotated[Unsupported, refused("send structured_outputs.choice instead")] = UNSET
    guided_grammar: Annotated[Unsupported, refused("send structured_outputs.grammar instead")] = UNSET
    guided_decoding_backend: Annotated[Unsupported, refused("send structured_outputs; llguidance keeps them all")] = (
        UNSET
    )
    best_of: Annotated[
        int | None, refused("use n and choose among the answers (only a value equal to n is taken)", 1)
    ] = None
    use_beam_search: Annotated[Unsupported, refused("use n with a temperature above 0", False)] = UNSET
    length_penalty: Annotated[Unsupported, refused("it belongs to beam search; leave it out", 1, 1.0)] = UNSET
    spaces_between_special_tokens: Annotated[Unsupported, refused("leave it out or send true", True)] = UNSET
    mm_processor_kwargs: Annotated[Unsupported, refused(NO_MEDIA)] = UNSET
    media_io_kwargs: Annotated[Unsupported, refused(NO_MEDIA)] = UNSET
    kv_transfer_params: Annotated[Unsupported, refused(LEAVE_OUT)] = UNSET
    ec_transfer_params: Annotated[Unsupported, refused(LEAVE_OUT)] = UNSET
    vllm_xargs: Annotated[Unsupported, refused(LEAVE_OUT)] = UNSET
    repetition_detection: Annotated[Unsupported, refused("use a repetition_penalty above 1")] = UNSET
    watermarking: Annotated[Unsupported, refused(LEAVE_OUT)] = UNSET
    routed_experts_prompt_start: Annotated[Unsupported, refused(LEAVE_OUT)] = UNSET
    logprob_token_ids: Annotated[Unsupported, refused("use logprobs, which reports the best tokens")] = UNSET


class GenerationFields(RefusedFields, kw_only=True, forbid_unknown_fields=True):
    """How to generate; the same in both endpoints."""

    model: Annotated[str | None, honoured("A name from /v1/models; the served model if left out.")] = None
    stream: Annotated[bool | None, honoured("Answer in server-sent events.")] = None
    stream_options: Annotated[StreamOptions | None, honoured("Only with stream: true.")] = None
    temperature: Annotated[
        float | None, honoured("Below 1e-5 is greedy. Default: the model's, else 1.", minimum=0, maximum=2)
    ] = None
    top_p: Annotated[
        float | None,
        honoured("Above 0. Default: the model's, else 1.", exclusiveMinimum=0, maximum=1),
    ] = None
    top_k: Annotated[
        int | None, honoured("0 or -1 is off. Default: the model's, else 0.", minimum=-1, maximum=2**31)
    ] = None
    min_p: Annotated[float | None, honoured("Default: the model's, else 0.", minimum=0, maximum=1)] = None
    presence_penalty: Annotated[float | None, honoured("Default 0.", minimum=-2, maximum=2)] = None
    frequency_penalty: Annotated[float | None, honoured("Default 0.", minimum=-2, maximum=2)] = None
    repetition_penalty: Annotated[
        float | None,
        honoured("Over prompt and output. Default: the model's, else 1.", exclusiveMinimum=0, maximum=100),
    ] = None
    logit_bias: Annotated[
        dict[str, float] | None,
        honoured("From token ids to -100..100, added before sampling.", maxProperties=1024),
    ] = None
    allowed_token_ids: Annotated[list[int] | None, honoured("Only these tokens are sampled.", minItems=1)] = None
    bad_words: Annotated[
        list[str] | None,
        honoured(
            f"Texts that are not generated, each of 1 to {MAX_BAD_WORD_LENGTH} characters.", maxItems=MAX_BAD_WORDS
        ),
    ] = None
    seed: Annotated[
        int | None,
        honoured("The same seed draws the same tokens; -1 is none.", minimum=-(2**63), maximum=2**63 - 1),
    ] = None
    n: Annotated[int | None, honoured("Choices for each prompt.", minimum=1, maximum=MAX_CHOICES)] = None
    stop: Annotated[
        str | list[str] | None,
        honoured(
            f"Up to {MAX_STOP_STRINGS} texts of 1 to {MAX_STOP_STRING_LENGTH} characters that end the answer.",
            maxItems=MAX_STOP_STRINGS,
            minLength=1,
            maxLength=MAX_STOP_STRING_LENGTH,
        ),
    ] = None
    stop_token_ids: Annotated[list[int] | None, honoured("Tokens that end the answer.", maxItems=1024)] = None
    include_stop_str_in_output: Annotated[bool | None, honoured("Keep what ended the answer in its text.")] = None
    ignore_eos: Annotated[bool | None, honoured("Go on after the end-of-text token.")] = None
    min_tokens: Annotated[
        int | None, honoured("No end before so many tokens; at most max_tokens.", minimum=0, maximum=2**31 - 1)
    ] = None
    skip_special_tokens: Annotated[bool | None, honoured("Leave special tokens out of the text. Default true.")] = None
    prompt_logprobs: Annotated[
        int | None, honoured("Score the prompt, with so many alternatives (at most --max-logprobs).", minimum=0)
    ] = None
    return_tokens_as_token_ids: Annotated[bool | None, honoured('Tokens in logprobs become "token_id:<n>".')] = None
    return_token_ids: Annotated[bool | None, honoured("Add prompt_token_ids and token_ids.")] = None
    return_prompt_text: Annotated[bool | None, honoured("Add prompt_text.")] = None
    truncate_prompt_tokens: Annotated[
        int | None, honoured("Keep so many tokens of a longer prompt; -1: what fits.", minimum=-1, maximum=2**31)
    ] = None
    truncation_side: Annotated[
        Literal["left", "right"] | None, honoured("Where a longer prompt is cut. Default left.")
    ] = None
    add_special_tokens: Annotated[
        bool | None, honoured("Put the tokenizer's own special tokens around the prompt, once. Default true.")
    ] = None
    response_format: Annotated[
        ResponseFormat | None, honoured("The answer is text, a JSON object, or JSON of a schema.")
    ] = None
    structured_outputs: Annotated[
        StructuredOutputs | None,
        honoured("Exactly one constraint on the answer: json, regex, choice, grammar, json_object or structural_tag."),
    ] = None
    priority: Annotated[
        int | None,
        honoured("Lower runs first; needs --scheduling-policy priority.", minimum=-MAX_PRIORITY, maximum=MAX_PRIORITY),
    ] = None
    request_id: Annotated[
        str | None,
        honoured("The request's name in x-request-id and in the log.", pattern="^[A-Za-z0-9_.-]{1,64}$"),
    ] = None
    cache_salt: Annotated[
        str | None,
        honoured("Only requests with the same salt share cached prefixes.", pattern="^[A-Za-z0-9_.-]{1,64}$"),
    ] = None
    stream_interval: Annotated[
        int | None,
        honoured("Tokens between two chunks. Default --stream-interval.", minimum=1, maximum=MAX_STREAM_INTERVAL),
    ] = None
    timeout_s: Annotated[
        float | None,
        honoured(
            'Seconds for the whole request. Then an answer that has begun ends with finish_reason "abort" and '
            'stop_reason "timeout"; one that has not is a 408.',
            exclusiveMinimum=0,
            maximum=MAX_TIMEOUT_SECONDS,
        ),
    ] = None
    ttft_timeout_s: Annotated[
        float | None,
        honoured("Seconds until the first token; then a 408.", exclusiveMinimum=0, maximum=MAX_TIMEOUT_SECONDS),
    ] = None

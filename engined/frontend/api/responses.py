"""Body of POST /v1/responses. Frontend process; read by `serving/responses`.

Each declaration carries a note of how the field is treated; see `support`.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct

from engined.frontend.api.chat import Scalar
from engined.frontend.api.constraints import EXACT, NOT_READ, StructuredOutputs
from engined.frontend.api.fields import (
    LEAVE_OUT,
    MAX_PRIORITY,
    MAX_STOP_STRING_LENGTH,
    MAX_STOP_STRINGS,
    MAX_TIMEOUT_SECONDS,
    NO_MEDIA,
)
from engined.frontend.api.response_input import MAX_ITEMS, ResponseInputItem
from engined.frontend.api.response_tools import ResponseTool, ResponseToolChoice
from engined.frontend.api.support import Unsupported, accepted, honoured, refused
from engined.frontend.api.tools import MAX_TOOLS

LOGPROBS = "message.output_text.logprobs"
_NO_SUMMARY = "there are no summaries; the reasoning itself is an item of the output, whole."
Includable = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


class TextFormat(Struct, kw_only=True, forbid_unknown_fields=True):
    """The form of the answer: the response_format of chat completions, flat."""

    type: Annotated[
        Literal["text", "json_object", "json_schema"],
        honoured("text: free; json_object: a JSON object; json_schema: by `schema`."),
    ]
    schema: Annotated[
        dict[str, Any] | bool | None,
        honoured("With type json_schema: the JSON Schema (draft 2020-12) that the answer validates against."),
    ] = None
    name: Annotated[str | None, accepted(NOT_READ)] = None
    description: Annotated[str | None, accepted(NOT_READ)] = None
    strict: Annotated[bool | None, accepted(EXACT)] = None


class TextConfig(Struct, kw_only=True, forbid_unknown_fields=True):
    """How the text is to look."""

    format: Annotated[TextFormat | None, honoured("The answer is text, a JSON object, or JSON of a schema.")] = None
    verbosity: Annotated[Unsupported, refused("ask in a message for a short or a long answer", "medium")] = UNSET


class ReasoningConfig(Struct, kw_only=True, forbid_unknown_fields=True):
    """How the model is to think."""

    effort: Annotated[
        str | None,
        honoured(
            '"none" turns reasoning off where the chat template can; it gets others if it knows a reasoning_effort.'
        ),
    ] = None
    summary: Annotated[Literal["auto", "concise", "detailed"] | None, accepted(_NO_SUMMARY)] = None
    generate_summary: Annotated[Literal["auto", "concise", "detailed"] | None, accepted(_NO_SUMMARY)] = None
    context: Annotated[
        Unsupported, refused("the model's chat template decides which earlier reasoning it shows", "auto")
    ] = UNSET
    mode: Annotated[Unsupported, refused("there is one mode; leave it out", "standard")] = UNSET


class ResponseStreamOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    """What a stream says besides its events."""

    include_obfuscation: Annotated[bool | None, accepted("engined never pads its events.")] = None


class BookkeepingFields(Struct, kw_only=True, forbid_unknown_fields=True):
    """Without effect on the answer; some come back in the response object."""

    metadata: Annotated[
        Annotated[dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)]
        | None,
        honoured("Comes back in the response object."),
    ] = None
    user: Annotated[str | None, accepted("one local server knows no users.")] = None
    safety_identifier: Annotated[Annotated[str, Meta(max_length=128)] | None, accepted("nobody is reported.")] = None
    prompt_cache_key: Annotated[str | None, accepted("the prefix cache finds every prompt by its tokens.")] = None
    prompt_cache_retention: Annotated[str | None, accepted("cached blocks stay until their room is needed.")] = None
    prompt_cache_options: Annotated[
        dict[str, Any] | None, accepted("the prefix cache finds every prompt by its tokens.")
    ] = None
    service_tier: Annotated[
        Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"] | None,
        accepted("there is one tier."),
    ] = None
    max_tool_calls: Annotated[
        int | None, accepted("it bounds the tools that a server runs itself, and engined runs none.")
    ] = None


class RefusedResponseFields(BookkeepingFields, kw_only=True, forbid_unknown_fields=True):
    """Known, but not implemented: refused by name, never ignored."""

    background: Annotated[
        Unsupported, refused("leave it out, and send stream: true where the answer takes long", False)
    ] = UNSET
    background_options: Annotated[Unsupported, refused(LEAVE_OUT)] = UNSET
    conversation: Annotated[
        Unsupported, refused("continue with previous_response_id, or send the whole conversation in input")
    ] = UNSET
    prompt: Annotated[
        Unsupported, refused("there are no stored prompts here; send the text in instructions and input")
    ] = UNSET
    context_management: Annotated[Unsupported, refused('set truncation to "auto" instead', [])] = UNSET
    moderation: Annotated[Unsupported, refused(LEAVE_OUT)] = UNSET
    image: Annotated[Unsupported, refused(NO_MEDIA)] = UNSET
    vllm_xargs: Annotated[Unsupported, refused(LEAVE_OUT)] = UNSET
    kv_transfer_params: Annotated[Unsupported, refused(LEAVE_OUT)] = UNSET
    mm_processor_kwargs: Annotated[Unsupported, refused(NO_MEDIA)] = UNSET
    enable_response_messages: Annotated[
        Unsupported, refused("POST /v1/chat/completions/render shows the prompt; leave it out", False)
    ] = UNSET
    previous_input_messages: Annotated[
        Unsupported, refused("send the items in input, or continue with previous_response_id")
    ] = UNSET


class ResponsesRequest(RefusedResponseFields, kw_only=True, forbid_unknown_fields=True):
    """The whole body."""

    input: Annotated[
        str | list[ResponseInputItem],
        honoured("A text, or the items of a conversation.", minItems=1, maxItems=MAX_ITEMS),
    ]
    model: Annotated[str | None, honoured("A name from /v1/models; the served model if left out.")] = None
    instructions: Annotated[
        str | None, honoured("The system message. previous_response_id does not bring back that of earlier turns.")
    ] = None
    previous_response_id: Annotated[
        str | None, honoured("Continue this response: its input and its answer come before `input`.")
    ] = None
    store: Annotated[
        bool | None,
        honoured("Keep the response, in memory, until newer ones displace it. Default true."),
    ] = None
    stream: Annotated[bool | None, honoured("Answer in server-sent events.")] = None
    stream_options: Annotated[ResponseStreamOptions | None, honoured("Only with stream: true.")] = None
    max_output_tokens: Annotated[
        int | None, honoured("Default: what the context holds.", minimum=1, maximum=2**31 - 1)
    ] = None
    truncation: Annotated[
        Literal["auto", "disabled"] | None,
        honoured(
            "auto: drop the oldest items until there is room for max_output_tokens (or a quarter of the context) as "
            "well. disabled, the default: a conversation that is too long is a 400."
        ),
    ] = None
    include: Annotated[
        list[Includable] | None,
        honoured(
            f"{LOGPROBS}: log-probabilities of all generated tokens, which stand with the text of the message; not "
            "with tools. reasoning.encrypted_content changes nothing, because reasoning is not encrypted here: send "
            "its items back as they are. The others concern items that never occur here."
        ),
    ] = None
    top_logprobs: Annotated[
        int | None,
        honoured(f"Alternatives for each token (at most --max-logprobs); needs {LOGPROBS} in include.", minimum=0),
    ] = None
    text: Annotated[TextConfig | None, honoured("The form of the answer.")] = None
    structured_outputs: Annotated[
        StructuredOutputs | None,
        honoured("Exactly one constraint on the answer: json, regex, choice, grammar, json_object or structural_tag."),
    ] = None
    tools: Annotated[list[ResponseTool] | None, honoured("What the model may call.", maxItems=MAX_TOOLS)] = None
    tool_choice: Annotated[
        ResponseToolChoice | None,
        honoured("none, auto, required, or an object that names tools. Default auto."),
    ] = None
    parallel_tool_calls: Annotated[bool | None, honoured("false: an answer has one call at most.")] = None
    reasoning: Annotated[ReasoningConfig | None, honoured("How the model is to think.")] = None
    thinking_token_budget: Annotated[
        int | None,
        honoured("Most tokens of reasoning, after which it is ended; -1 is none.", minimum=-1, maximum=2**31 - 1),
    ] = None
    temperature: Annotated[
        float | None, honoured("Below 1e-5 is greedy. Default: the model's, else 1.", minimum=0, maximum=2)
    ] = None
    top_p: Annotated[
        float | None, honoured("Above 0. Default: the model's, else 1.", exclusiveMinimum=0, maximum=1)
    ] = None
    top_k: Annotated[
        int | None, honoured("0 or -1 is off. Default: the model's, else 0.", minimum=-1, maximum=2**31)
    ] = None
    min_p: Annotated[float | None, honoured("Default: the model's, else 0.", minimum=0, maximum=1)] = None
    repetition_penalty: Annotated[
        float | None,
        honoured("Over prompt and output. Default: the model's, else 1.", exclusiveMinimum=0, maximum=100),
    ] = None
    seed: Annotated[
        int | None,
        honoured("The same seed draws the same tokens; -1 is none.", minimum=-(2**63), maximum=2**63 - 1),
    ] = None
    stop: Annotated[
        str | list[str] | None,
        honoured(
            f"Up to {MAX_STOP_STRINGS} texts of 1 to {MAX_STOP_STRING_LENGTH} characters that end the answer.",
            maxItems=MAX_STOP_STRINGS,
            minLength=1,
            maxLength=MAX_STOP_STRING_LENGTH,
        ),
    ] = None
    ignore_eos: Annotated[bool | None, honoured("Go on after the end-of-text token.")] = None
    skip_special_tokens: Annotated[bool | None, honoured("Leave special tokens out of the text. Default true.")] = None
    priority: Annotated[
        int | None,
        honoured("Lower runs first; needs --scheduling-policy priority.", minimum=-MAX_PRIORITY, maximum=MAX_PRIORITY),
    ] = None
    cache_salt: Annotated[
        str | None,
        honoured("Only requests with the same salt share cached prefixes.", pattern="^[A-Za-z0-9_.-]{1,64}$"),
    ] = None
    request_id: Annotated[
        str | None,
        honoured("The request's name in x-request-id and in the log.", pattern="^[A-Za-z0-9_.-]{1,64}$"),
    ] = None
    timeout_s: Annotated[
        float | None,
        honoured(
            "Seconds for the whole request. Then an answer that has begun ends incomplete, for the reason timeout; one "
            "that has not is a 408.",
            exclusiveMinimum=0,
            maximum=MAX_TIMEOUT_SECONDS,
        ),
    ] = None
    ttft_timeout_s: Annotated[
        float | None,
        honoured("Seconds until the first token; then a 408.", exclusiveMinimum=0, maximum=MAX_TIMEOUT_SECONDS),
    ] = None
    chat_template_kwargs: Annotated[
        dict[str, Scalar] | None, honoured("Variables that the model's chat template knows.")
    ] = None

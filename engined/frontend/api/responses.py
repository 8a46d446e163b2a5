"""Body of POST /v1/responses: text in, text out. Frontend process; read by `serving/responses`.

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
    NO_TOOLS,
)
from engined.frontend.api.support import Unsupported, accepted, honoured, refused

MAX_ITEMS = 4096
NO_REASONING = "reasoning is not available yet; leave it out"
NOT_A_MESSAGE = "it belongs to an item that is not a message; leave it out"
LOGPROBS = "message.output_text.logprobs"
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


class ResponseInputPart(Struct, kw_only=True, forbid_unknown_fields=True):
    """One part of a message. Only text is implemented; the other payloads are named so that they can be refused."""

    type: Annotated[
        str,
        honoured(
            "input_text; in a message of the assistant output_text or refusal.",
            enum=["input_text", "output_text", "refusal"],
        ),
    ]
    text: Annotated[str | None, honoured("Of a text part.")] = None
    refusal: Annotated[str | None, honoured("Of a refusal part.")] = None
    annotations: Annotated[list[Any] | None, accepted("the model does not read what is around a text.")] = None
    logprobs: Annotated[list[Any] | None, accepted("the model does not read what is around a text.")] = None
    prompt_cache_breakpoint: Annotated[
        dict[str, Any] | None, accepted("the prefix cache finds every prompt by its tokens.")
    ] = None
    image_url: Annotated[Unsupported, refused(NO_MEDIA)] = UNSET
    detail: Annotated[Unsupported, refused(NO_MEDIA)] = UNSET
    file_id: Annotated[Unsupported, refused(NO_MEDIA)] = UNSET
    file_data: Annotated[Unsupported, refused(NO_MEDIA)] = UNSET
    file_url: Annotated[Unsupported, refused(NO_MEDIA)] = UNSET
    filename: Annotated[Unsupported, refused(NO_MEDIA)] = UNSET
    input_audio: Annotated[Unsupported, refused(NO_MEDIA)] = UNSET


class ResponseInputItem(Struct, kw_only=True, forbid_unknown_fields=True):
    """One item of the conversation. Only messages are implemented; the fields of other items are refused by name."""

    type: Annotated[str | None, honoured('"message", which may be left out.', enum=["message", None])] = None
    role: Annotated[
        str | None,
        honoured("user, assistant, system or developer.", enum=["user", "assistant", "system", "developer"]),
    ] = None
    content: Annotated[str | list[ResponseInputPart] | None, honoured("A text, or a list of parts.")] = None
    id: Annotated[str | None, accepted("stored items have ids of their own.")] = None
    status: Annotated[
        Literal["in_progress", "completed", "incomplete"] | None, accepted("the model reads the text alone.")
    ] = None
    phase: Annotated[str | None, accepted("the model reads the text alone.")] = None
    call_id: Annotated[Unsupported, refused(NOT_A_MESSAGE)] = UNSET
    name: Annotated[Unsupported, refused(NOT_A_MESSAGE)] = UNSET
    arguments: Annotated[Unsupported, refused(NOT_A_MESSAGE)] = UNSET
    input: Annotated[Unsupported, refused(NOT_A_MESSAGE)] = UNSET
    output: Annotated[Unsupported, refused(NOT_A_MESSAGE)] = UNSET
    action: Annotated[Unsupported, refused(NOT_A_MESSAGE)] = UNSET
    summary: Annotated[Unsupported, refused(NOT_A_MESSAGE)] = UNSET
    encrypted_content: Annotated[Unsupported, refused(NOT_A_MESSAGE)] = UNSET


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
    """No reasoning for now."""

    effort: Annotated[Unsupported, refused(NO_REASONING, "none")] = UNSET
    summary: Annotated[Unsupported, refused(NO_REASONING)] = UNSET
    generate_summary: Annotated[Unsupported, refused(NO_REASONING)] = UNSET
    context: Annotated[Unsupported, refused(NO_REASONING, "auto")] = UNSET
    mode: Annotated[Unsupported, refused(NO_REASONING, "standard")] = UNSET


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
    parallel_tool_calls: Annotated[bool | None, accepted("there are no tool calls.")] = None
    max_tool_calls: Annotated[int | None, accepted("there are no tool calls.")] = None


class RefusedResponseFields(BookkeepingFields, kw_only=True, forbid_unknown_fields=True):
    """Known, but not implemented: refused by name, never ignored."""

    background: Annotated[
        Unsupported, refused("leave it out, and send stream: true where the answer takes long", False)
    ] = UNSET
    background_options: Annotated[Unsupported, refused(LEAVE_OUT)] = UNSET
    conversation: Annotated[
        Unsupported, refused("continue with previous_response_id, or send the whole conversation in input")
    ] = UNSET
    tools: Annotated[Unsupported, refused(NO_TOOLS, [])] = UNSET
    tool_choice: Annotated[Unsupported, refused(NO_TOOLS, "none", "auto")] = UNSET
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
        honoured(f"{LOGPROBS}: log-probabilities of the answer. The others concern items that never occur here."),
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
    reasoning: Annotated[ReasoningConfig | None, honoured("Only none for now.")] = None
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

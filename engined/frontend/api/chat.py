"""Body of POST /v1/chat/completions."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Struct

from engined.frontend.api.fields import NO_MEDIA, GenerationFields
from engined.frontend.api.support import Unsupported, accepted, honoured, refused
from engined.frontend.api.tools import MAX_TOOLS, ChatTool, ToolCall, ToolChoice

Scalar = str | int | float | bool | None
_OLD_CALL = "send tool_calls instead"
_OLD_TOOLS = "send tools and tool_choice instead"
_PREDICTION = "a prediction makes answers faster at OpenAI, never different."


class ContentPart(Struct, kw_only=True, forbid_unknown_fields=True):
    """One part of a message. Only text is implemented; the other payloads are named so that they can be refused."""

    type: Annotated[str, honoured('"text" or "refusal".', enum=["text", "refusal"])]
    text: Annotated[str | None, honoured("Of a text part.")] = None
    refusal: Annotated[str | None, honoured("Of a refusal part.")] = None
    image_url: Annotated[Unsupported, refused(NO_MEDIA)] = UNSET
    input_audio: Annotated[Unsupported, refused(NO_MEDIA)] = UNSET
    audio_url: Annotated[Unsupported, refused(NO_MEDIA)] = UNSET
    video_url: Annotated[Unsupported, refused(NO_MEDIA)] = UNSET
    file: Annotated[Unsupported, refused(NO_MEDIA)] = UNSET
    image_embeds: Annotated[Unsupported, refused(NO_MEDIA)] = UNSET
    image_pil: Annotated[Unsupported, refused(NO_MEDIA)] = UNSET
    uuid: Annotated[str | None, accepted("it names media for a cache, and there are none.")] = None


class ChatMessage(Struct, kw_only=True, forbid_unknown_fields=True):
    """One message of the conversation."""

    role: Annotated[
        str,
        honoured(
            "system, developer, user, assistant or tool.", enum=["system", "developer", "user", "assistant", "tool"]
        ),
    ]
    content: Annotated[
        str | list[ContentPart] | None, honoured("A text, or a list of parts; only the assistant's may be null.")
    ] = None
    name: Annotated[
        str | None,
        honoured("Given to the chat template: 1 to 64 printable characters.", minLength=1, maxLength=64),
    ] = None
    refusal: Annotated[str | None, accepted("chat templates do not know it.")] = None
    parsed: Annotated[Any, accepted("OpenAI's clients put what they make of content beside it.")] = None
    tool_calls: Annotated[list[ToolCall] | None, honoured("Of the assistant: the tools that it called.")] = None
    tool_call_id: Annotated[str | None, honoured("Of a tool: the id of the call whose result this is.")] = None
    reasoning_content: Annotated[
        str | None, honoured("Of the assistant: what it thought. Shown to the model where its template reads it.")
    ] = None
    reasoning: Annotated[str | None, honoured("Another name of reasoning_content.")] = None
    function_call: Annotated[Unsupported, refused(_OLD_CALL)] = UNSET
    audio: Annotated[Unsupported, refused(NO_MEDIA)] = UNSET
    annotations: Annotated[Unsupported, refused("the model searches nothing; leave it out", [])] = UNSET


class PredictedPart(Struct, kw_only=True, forbid_unknown_fields=True):
    """A part of what the answer will probably be."""

    type: Annotated[Literal["text"], accepted(_PREDICTION)]
    text: Annotated[str, accepted(_PREDICTION)]


class Prediction(Struct, kw_only=True, forbid_unknown_fields=True):
    """What the answer will probably be."""

    type: Annotated[Literal["content"], accepted(_PREDICTION)]
    content: Annotated[str | list[PredictedPart], accepted(_PREDICTION)]


class ChatCompletionRequest(GenerationFields, kw_only=True, forbid_unknown_fields=True):
    """The whole body."""

    messages: Annotated[list[ChatMessage], honoured("The conversation, oldest first.", minItems=1)]
    max_completion_tokens: Annotated[
        int | None, honoured("Wins over max_tokens. Default: what the context holds.", minimum=1, maximum=2**31 - 1)
    ] = None
    max_tokens: Annotated[
        int | None, honoured("The older name of max_completion_tokens.", minimum=1, maximum=2**31 - 1)
    ] = None
    logprobs: Annotated[bool | None, honoured("Report the log-probability of each token.")] = None
    top_logprobs: Annotated[
        int | None, honoured("Alternatives for each token (at most --max-logprobs); needs logprobs.", minimum=0)
    ] = None
    echo: Annotated[bool | None, honoured("Begin the answer with the last message, if it is the assistant's.")] = None
    add_generation_prompt: Annotated[bool | None, honoured("Let the template begin an answer. Default true.")] = None
    continue_final_message: Annotated[
        bool | None, honoured("Continue the last message; needs add_generation_prompt false or left out.")
    ] = None
    chat_template_kwargs: Annotated[
        dict[str, Scalar] | None, honoured("Variables that the model's chat template knows.")
    ] = None
    reasoning_effort: Annotated[
        str | None,
        honoured(
            '"none" turns reasoning off where the chat template can; it gets others if it knows a reasoning_effort.'
        ),
    ] = None
    include_reasoning: Annotated[bool | None, honoured("false leaves the reasoning out of the answer.")] = None
    thinking_token_budget: Annotated[
        int | None,
        honoured("Most tokens of reasoning, after which it is ended; -1 is none.", minimum=-1, maximum=2**31 - 1),
    ] = None
    tools: Annotated[list[ChatTool] | None, honoured("What the model may call.", minItems=1, maxItems=MAX_TOOLS)] = None
    tool_choice: Annotated[
        ToolChoice | None, honoured("none, auto, required, or an object that names tools. Default auto with tools.")
    ] = None
    parallel_tool_calls: Annotated[bool | None, honoured("false: an answer has one call at most.")] = None
    prediction: Annotated[Prediction | None, accepted(_PREDICTION)] = None
    functions: Annotated[Unsupported, refused(_OLD_TOOLS)] = UNSET
    function_call: Annotated[Unsupported, refused(_OLD_TOOLS, "none", "auto")] = UNSET
    modalities: Annotated[Unsupported, refused(NO_MEDIA, ["text"])] = UNSET
    audio: Annotated[Unsupported, refused(NO_MEDIA)] = UNSET
    verbosity: Annotated[Unsupported, refused("ask in a message for a short or a long answer", "medium")] = UNSET
    web_search_options: Annotated[Unsupported, refused("search yourself and put the findings into a message")] = UNSET
    moderation: Annotated[Unsupported, refused("leave it out")] = UNSET
    documents: Annotated[Unsupported, refused("put the documents into a message")] = UNSET
    chat_template: Annotated[Unsupported, refused("start engined with --chat-template FILE instead")] = UNSET

"""Body of POST /v1/chat/completions."""

from msgspec import UNSET, Struct

from engined.frontend.api.fields import GenerationFields, Unsupported

Scalar = str | int | float | bool | None


class ContentPart(Struct, kw_only=True, forbid_unknown_fields=True):
    """One part of a message. Only text is implemented; the other payloads are named so that they can be refused."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: Unsupported = UNSET
    input_audio: Unsupported = UNSET
    audio_url: Unsupported = UNSET
    video_url: Unsupported = UNSET
    file: Unsupported = UNSET
    image_embeds: Unsupported = UNSET
    image_pil: Unsupported = UNSET
    uuid: str | None = None


class ChatMessage(Struct, kw_only=True, forbid_unknown_fields=True):
    """One message of the conversation."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: Unsupported = UNSET
    tool_call_id: Unsupported = UNSET
    function_call: Unsupported = UNSET
    audio: Unsupported = UNSET
    annotations: Unsupported = UNSET
    reasoning: Unsupported = UNSET
    reasoning_content: Unsupported = UNSET


class ChatCompletionRequest(GenerationFields, kw_only=True, forbid_unknown_fields=True):
    """The whole body."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tool_choice: Unsupported = UNSET
    modalities: list[str] | None = None
    reasoning_effort: str | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Scalar] | None = None

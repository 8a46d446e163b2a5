"""From the bodies of /v1/messages to chat completions. Pure; raises RequestError that names Anthropic's own field."""

from collections.abc import Sequence

from engined.errors import RequestError
from engined.frontend.api.chat import ChatCompletionRequest, ChatMessage, ContentPart
from engined.frontend.api.fields import MAX_STOP_STRING_LENGTH, MAX_STOP_STRINGS
from engined.frontend.api.messages import (
    NO_MEDIA,
    NO_THINKING,
    NO_TOOLS,
    InputMessage,
    MessageBlock,
    MessagesRequest,
    PromptFields,
)
from engined.frontend.api.parser import check_refused, refused_fields, unsupported

ROLES = ("user", "assistant", "system")
_REFUSED_IN_BLOCK = refused_fields(MessageBlock)


def to_chat_request(request: MessagesRequest) -> ChatCompletionRequest:
    """The same request as /v1/chat/completions takes it, checked where the names of the two differ."""
    _check_stop_sequences(request.stop_sequences)
    return ChatCompletionRequest(
        model=request.model,
        messages=to_chat_messages(request),
        continue_final_message=continues_answer(request),
        stream=request.stream,
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        stop=request.stop_sequences,
    )


def to_chat_messages(request: PromptFields) -> list[ChatMessage]:
    """The conversation; `system` is its first message, and neighbours of one role are one message."""
    if not request.messages:
        raise RequestError("messages must hold at least one message", param="messages")
    system = _to_parts(request.system, "system") if request.system is not None else []
    turns = [("system", system)] if system else []
    for index, message in enumerate(request.messages):
        where = f"messages[{index}]"
        _check_role(message, where)
        parts = _to_parts(message.content, f"{where}.content")
        if turns and turns[-1][0] == message.role:
            turns[-1][1].extend(parts)
        else:
            turns.append((message.role, parts))
    return [ChatMessage(role=role, content=_to_content(parts)) for role, parts in turns]


def continues_answer(request: PromptFields) -> bool:
    """Whether the last message is the beginning of the answer."""
    return bool(request.messages) and request.messages[-1].role == "assistant"


def _check_role(message: InputMessage, where: str) -> None:
    if message.role not in ROLES:
        raise RequestError(
            f"{where}.role must be one of {', '.join(ROLES)}, not {message.role[:64]!r}", param=f"{where}.role"
        )


def _to_parts(content: str | list[MessageBlock], where: str) -> list[str]:
    """The texts of all blocks."""
    if isinstance(content, str):
        return [content]
    if not content and where != "system":
        raise RequestError(f"{where} is empty: send a text, or at least one text block", param=where)
    return [_block_text(block, f"{where}[{index}]") for index, block in enumerate(content)]


def _block_text(block: MessageBlock, where: str) -> str:
    if block.type != "text":
        raise unsupported(f"{where}.type", f"blocks of type {block.type[:64]!r} cannot be read; {_remedy(block.type)}")
    check_refused(block, _REFUSED_IN_BLOCK, where)
    if block.text is None:
        raise RequestError(f"{where}.text is required", param=f"{where}.text", code="missing_required_parameter")
    return block.text


def _to_content(parts: Sequence[str]) -> str | list[ContentPart]:
    return parts[0] if len(parts) == 1 else [ContentPart(type="text", text=text) for text in parts]


def _remedy(block_type: str) -> str:
    """What to do instead of sending a block of this type."""
    if "tool" in block_type:
        return NO_TOOLS
    return NO_THINKING if "thinking" in block_type else NO_MEDIA


def _check_stop_sequences(stop_sequences: list[str] | None) -> None:
    param = "stop_sequences"
    if stop_sequences is None:
        return
    if len(stop_sequences) > MAX_STOP_STRINGS:
        raise RequestError(f"{param} may hold {MAX_STOP_STRINGS} texts, not {len(stop_sequences)}", param=param)
    for index, text in enumerate(stop_sequences):
        if not 1 <= len(text) <= MAX_STOP_STRING_LENGTH:
            raise RequestError(
                f"{param}[{index}] must have 1 to {MAX_STOP_STRING_LENGTH} characters, not {len(text)}", param=param
            )

"""Bodies and answers of /tokenize, /detokenize and /v1/chat/completions/render. Frontend process."""

from typing import Annotated

from msgspec import UNSET, Struct

from engined.frontend.api.chat import ChatMessage, Scalar
from engined.frontend.api.fields import NO_MEDIA
from engined.frontend.api.support import Unsupported, honoured, refused
from engined.frontend.api.tools import MAX_TOOLS, ChatTool

_MODEL = "A name from /v1/models; the served model if left out."
_WITH_MESSAGES = "Only with messages; as in /v1/chat/completions."


class TokenizeRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Either a text or a conversation."""

    model: Annotated[str | None, honoured(_MODEL)] = None
    prompt: Annotated[str | None, honoured("A text. Give this or messages.")] = None
    messages: Annotated[list[ChatMessage] | None, honoured("A conversation. Give this or prompt.")] = None
    add_special_tokens: Annotated[
        bool | None, honoured("Put the tokenizer's own special tokens around the prompt, once. Default true.")
    ] = None
    return_token_strs: Annotated[bool | None, honoured("Add the text of each token.")] = None
    add_generation_prompt: Annotated[bool | None, honoured(_WITH_MESSAGES)] = None
    continue_final_message: Annotated[bool | None, honoured(_WITH_MESSAGES)] = None
    chat_template_kwargs: Annotated[dict[str, Scalar] | None, honoured(_WITH_MESSAGES)] = None
    tools: Annotated[list[ChatTool] | None, honoured(_WITH_MESSAGES, minItems=1, maxItems=MAX_TOOLS)] = None
    chat_template: Annotated[Unsupported, refused("start engined with --chat-template FILE instead")] = UNSET
    mm_processor_kwargs: Annotated[Unsupported, refused(NO_MEDIA)] = UNSET


class TokenizeResponse(Struct, kw_only=True):
    """The tokens, and how many of them the model can take."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Token ids to read."""

    model: Annotated[str | None, honoured(_MODEL)] = None
    tokens: Annotated[list[int], honoured("Token ids of the vocabulary.")]


class DetokenizeResponse(Struct, kw_only=True):
    """Their text, special tokens included."""

    prompt: str


class RenderResponse(Struct, kw_only=True):
    """The prompt that a chat completion with the same body would compute."""

    prompt: str
    """The conversation as the chat template writes it out."""
    token_ids: list[int]
    count: int
    max_model_len: int

"""Body of POST /v1/completions."""

from typing import Annotated

from msgspec import UNSET

from engined.frontend.api.fields import GenerationFields
from engined.frontend.api.support import Unsupported, honoured, refused

MAX_PROMPTS = 64
_CHAT_ONLY = "reasoning is told apart in /v1/chat/completions"


class CompletionRequest(GenerationFields, kw_only=True, forbid_unknown_fields=True):
    """The whole body."""

    prompt: Annotated[
        str | list[int | str | list[int]],
        honoured(f"A text, up to {MAX_PROMPTS} texts, a list of token ids, or up to {MAX_PROMPTS} such lists."),
    ]
    max_tokens: Annotated[
        int | None,
        honoured("Default 16. 0 generates nothing: with echo it scores the prompt.", minimum=0, maximum=2**31 - 1),
    ] = None
    logprobs: Annotated[
        int | None, honoured("Alternatives to report for each token (at most --max-logprobs).", minimum=0)
    ] = None
    echo: Annotated[bool | None, honoured("Begin the text with the prompt.")] = None
    suffix: Annotated[
        Unsupported, refused("the model has no fill-in-the-middle format; put everything into prompt")
    ] = UNSET
    include_reasoning: Annotated[Unsupported, refused(_CHAT_ONLY, True)] = UNSET
    thinking_token_budget: Annotated[Unsupported, refused(_CHAT_ONLY, -1)] = UNSET
    prompt_embeds: Annotated[Unsupported, refused("send prompt as text or token ids")] = UNSET

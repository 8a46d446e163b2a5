"""Checks of the fields that all pooling routes share, and of their texts. Pure; raise RequestError."""

from collections.abc import Sequence

from engined.errors import RequestError
from engined.frontend.api.pooling import MAX_ITEMS, MAX_TOKENS, PoolingFields
from engined.frontend.rendering.pooling_input import PoolingExtras
from engined.frontend.serving.checks import check_prompt_fields
from engined.frontend.serving.context import ServingContext


def check_fields(request: PoolingFields, context: ServingContext, route: str) -> PoolingExtras:
    """Everything about a request but its texts: what it asks of its prompts."""
    context.check_model(request.model)
    context.require_runner("pooling", route)
    check_prompt_fields(request, has_priority=context.has_priority)
    return PoolingExtras(
        add_special_tokens=request.add_special_tokens is not False,
        truncate_prompt_tokens=request.truncate_prompt_tokens,
    )


def check_texts(texts: Sequence[str], param: str, *, is_list: bool) -> None:
    """A list of texts is neither empty nor too long, and no text is empty."""
    if not 1 <= len(texts) <= MAX_ITEMS:
        raise RequestError(f"{param} must hold 1 to {MAX_ITEMS} texts, not {len(texts)}", param=param)
    for index, text in enumerate(texts):
        if not text:
            name = f"{param}[{index}]" if is_list else param
            raise RequestError(f"{name} is an empty text: leave it out", param=name)


def check_num_tokens(num_tokens: int, param: str) -> None:
    """All sequences of one request together are not too long."""
    if num_tokens > MAX_TOKENS:
        raise RequestError(
            f"{param} has {num_tokens} tokens; one request may have {MAX_TOKENS}: split it",
            param=param,
            code="max_tokens_per_request",
        )

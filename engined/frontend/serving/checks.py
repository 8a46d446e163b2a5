"""Checks and small conversions of request fields that both generation endpoints share. Pure; raise RequestError."""

import re
from typing import Literal

from engined.errors import RequestError
from engined.frontend.api.fields import GenerationFields
from engined.frontend.api.parser import unsupported

MAX_PRIORITY = 2**31
LABEL = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""Request ids and cache salts: safe in a log line, bounded."""


def check_common(request: GenerationFields, *, has_priority: bool) -> None:
    """Everything about the shared fields that needs no prompt."""
    if request.stream_options is not None and not request.stream:
        raise RequestError("stream_options is only allowed with stream: true", param="stream_options")
    if request.response_format is not None and request.response_format.type != "text":
        raise unsupported("response_format")
    if request.use_beam_search:
        raise unsupported("use_beam_search")
    if request.spaces_between_special_tokens is False:
        raise unsupported("spaces_between_special_tokens")
    if request.prompt_logprobs is not None and request.stream:
        raise RequestError("prompt_logprobs cannot be streamed: set stream to false", param="prompt_logprobs")
    priority = request.priority or 0
    if abs(priority) > MAX_PRIORITY:
        raise RequestError(f"priority must be from {-MAX_PRIORITY} to {MAX_PRIORITY}", param="priority")
    if priority and not has_priority:
        raise RequestError("priority needs a server with --scheduling-policy priority: leave it out", param="priority")
    for name, label in (("cache_salt", request.cache_salt), ("request_id", request.request_id)):
        if label is not None and LABEL.fullmatch(label) is None:
            raise RequestError(f"{name} must have 1 to 64 letters, digits, dots, dashes or underscores", param=name)
    truncate = request.truncate_prompt_tokens
    if truncate is not None and truncate != -1 and not 1 <= truncate <= MAX_PRIORITY:
        raise RequestError(
            "truncate_prompt_tokens must be at least 1, or -1 for what fits", param="truncate_prompt_tokens"
        )


def check_logprobs(name: str, value: int | None, max_logprobs: int) -> int | None:
    """A number of alternatives, or None."""
    if value is not None and not 0 <= value <= max_logprobs:
        raise RequestError(f"{name} must be from 0 to {max_logprobs} (--max-logprobs), not {value}", param=name)
    return value


def check_max_tokens(name: str, value: int | None, minimum: int) -> int | None:
    """A number of tokens to generate, or None."""
    if value is not None and not minimum <= value < 2**31:
        raise RequestError(f"{name} must be at least {minimum} and below 2**31, not {value}", param=name)
    return value


def truncation_side(request: GenerationFields) -> Literal["left", "right"]:
    """Where a long prompt is cut; its beginning, unless the request says otherwise."""
    return request.truncation_side or "left"

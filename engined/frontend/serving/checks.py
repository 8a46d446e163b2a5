"""Checks and small conversions of request fields that both generation endpoints share. Pure; raise RequestError."""

import re
from typing import Literal

from engined.errors import RequestError
from engined.frontend.api.fields import MAX_PRIORITY, MAX_TIMEOUT_SECONDS, GenerationFields
from engined.frontend.api.pooling import PoolingFields
from engined.frontend.serving.time_limits import TimeLimits

LABEL = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""Request ids and cache salts: safe in a log line, bounded."""


def check_common(request: GenerationFields, *, has_priority: bool) -> None:
    """Everything about the shared fields that needs no prompt."""
    if request.stream_options is not None and not request.stream:
        raise RequestError("stream_options is only allowed with stream: true", param="stream_options")
    check_prompt_fields(request, has_priority=has_priority)


def check_prompt_fields(request: GenerationFields | PoolingFields, *, has_priority: bool) -> None:
    """What every endpoint lets a request say of its prompts: priority, labels, truncation."""
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


def resolve_time_limits(request: GenerationFields) -> TimeLimits:
    """The deadlines that the request sets itself."""
    for name, seconds in (("timeout_s", request.timeout_s), ("ttft_timeout_s", request.ttft_timeout_s)):
        if seconds is not None and not 0 < seconds <= MAX_TIMEOUT_SECONDS:
            raise RequestError(f"{name} must be above 0 and at most {MAX_TIMEOUT_SECONDS} seconds", param=name)
    return TimeLimits(total=request.timeout_s, first_token=request.ttft_timeout_s)


def truncation_side(request: GenerationFields) -> Literal["left", "right"]:
    """Where a long prompt is cut; its beginning, unless the request says otherwise."""
    return request.truncation_side or "left"

"""What `thinking` and `output_config.effort` ask of a model, in the words of chat completions. Pure; see `convert`."""

from dataclasses import dataclass, field

from engined.errors import RequestError
from engined.frontend.api.chat import Scalar
from engined.frontend.api.messages import PromptFields, ThinkingConfig

SWITCHES = ("enable_thinking", "thinking")
"""What chat templates call the variable that turns reasoning on or off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningAbilities:
    """What the served model lets a request say about reasoning."""

    has_format: bool
    """Whether the reasoning in answers is recognised."""
    template_variables: frozenset[str]
    """Of the chat template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningFields:
    """Fields of the chat request, by their names there."""

    include_reasoning: bool
    reasoning_effort: str | None = None
    thinking_token_budget: int | None = None
    chat_template_kwargs: dict[str, Scalar] = field(default_factory=dict)


def resolve_reasoning(request: PromptFields, abilities: ReasoningAbilities) -> ReasoningFields:
    """Reasoning as the request wants it: none, unless it says so. Raises RequestError."""
    thinking = request.thinking
    if thinking is not None:
        _check(thinking, abilities)
    is_on = thinking is not None and thinking.type != "disabled"
    switches: dict[str, Scalar] = {name: is_on for name in SWITCHES if name in abilities.template_variables}
    if thinking is None or not is_on:
        cuts_off = abilities.has_format and not switches
        return ReasoningFields(
            include_reasoning=False, thinking_token_budget=0 if cuts_off else None, chat_template_kwargs=switches
        )
    effort = None if request.output_config is None else request.output_config.effort
    return ReasoningFields(
        include_reasoning=thinking.display != "omitted",
        reasoning_effort=effort if "reasoning_effort" in abilities.template_variables else None,
        thinking_token_budget=thinking.budget_tokens,
        chat_template_kwargs=switches,
    )


def _check(thinking: ThinkingConfig, abilities: ReasoningAbilities) -> None:
    param = "thinking.budget_tokens"
    if thinking.type != "enabled":
        if thinking.budget_tokens is not None:
            raise RequestError(f'{param} needs the type "enabled", not "{thinking.type}"', param=param)
        return
    if not abilities.has_format:
        raise RequestError(
            'thinking: this model is not known to reason; leave it out, send {"type": "adaptive"}, or start engined '
            "with a --reasoning-parser",
            param="thinking",
            code="unsupported_parameter",
        )
    if thinking.budget_tokens is None:
        raise RequestError(
            f'{param} is required with the type "enabled"', param=param, code="missing_required_parameter"
        )
    if thinking.budget_tokens < 1:
        raise RequestError(f"{param} must be at least 1, not {thinking.budget_tokens}", param=param)

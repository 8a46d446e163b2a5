"""Whether the text of a model begins inside its reasoning. Frontend process; called for each chat request."""

from typing import Literal

from engined.frontend.parsing.format import ReasoningFormat

StartState = Literal["open", "closed", "none"]


def reasoning_state(reasoning: ReasoningFormat, prompt_tail: str) -> StartState:
    """Of the end of a rendered prompt: whether it begins the reasoning, has ended it, or says nothing.

    Only what the prompt ends with counts: anywhere before, a user may have written the same tags. Where the prompt ends
    inside a message that the model continues, `continued_state` of that message's text is asked instead.
    """
    tail = prompt_tail.rstrip()
    if tail.endswith(reasoning.end.strip()):
        return "closed"
    if tail.endswith(reasoning.begin.strip()):
        return "open"
    return "none"


def continued_state(reasoning: ReasoningFormat, message: str) -> StartState:
    """Of the text of a final assistant message that the model is to continue."""
    begin, end = message.rfind(reasoning.begin.strip()), message.rfind(reasoning.end.strip())
    if begin < 0 and end < 0:
        return "none"
    return "open" if begin > end else "closed"

"""How many tokens a step may hold while streams run, so that a long prompt does not hold them up. Pure; owned by the
scheduler.
"""

from engined.scheduler.step_time import StepTimeModel

DEFAULT_STRETCH = 3.0
"""How much longer a step may take than the running requests alone need, if nobody says."""
TILE_ROWS = 32
"""Tokens that a matrix kernel computes at a time: a step of 33 takes as long as one of 64."""
MIN_PROMPT_TOKENS = 16
"""However slow the machine is, prompts advance by so many in each step."""


class StepBudget:
    """Turns a limit in seconds into one in tokens, by what steps have taken so far."""

    def __init__(self, max_step_ms: float | None) -> None:
        """None: DEFAULT_STRETCH times what the running requests take alone."""
        self._max_step_seconds = None if max_step_ms is None else max_step_ms / 1000
        self.times = StepTimeModel()

    def num_tokens(self, num_running: int, context: int) -> int:
        """Tokens of a step: one for each running request, and some of prompts, of which `context` are computed."""
        base_seconds = self.times.base_seconds(num_running)
        max_seconds = DEFAULT_STRETCH * base_seconds if self._max_step_seconds is None else self._max_step_seconds
        num_prompt_tokens = int((max_seconds - base_seconds) / self.times.seconds_per_token(context))
        least = -(-(num_running + MIN_PROMPT_TOKENS) // TILE_ROWS)
        return max(least, (num_running + num_prompt_tokens) // TILE_ROWS) * TILE_ROWS

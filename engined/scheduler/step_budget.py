"""How many tokens a step may hold while streams run, so that a long prompt does not hold them up. Pure; owned by the
scheduler.
"""

from engined.scheduler.step_time import StepTimeModel

PROMPT_SHARE = 4.0
"""If nobody says: time that prompts may take in a step, of what the running requests alone need. Measured, against 2:
32 or 64 requests at once make 1.14 times the tokens a second, and the longest gaps are 0.11 s instead of 0.07.
"""
UNNOTICED_STEP_SECONDS = 0.05
"""A step that takes no longer holds nobody up, however fast the streams would be: it is twenty tokens a second."""
TILE_ROWS = 32
"""Tokens that a matrix kernel computes at a time: a step of 33 takes as long as one of 64."""
MIN_PROMPT_TOKENS = 16
"""However slow the machine is, prompts advance by so many in each step."""


class StepBudget:
    """Turns a limit in seconds into one in tokens, by what steps have taken so far."""

    def __init__(self, max_step_ms: float | None) -> None:
        """None: a share of what the running requests take alone; see `_prompt_seconds`."""
        self._max_step_seconds = None if max_step_ms is None else max_step_ms / 1000
        self.times = StepTimeModel()

    def num_tokens(self, num_running: int, prompts_per_stream: float, context: int) -> int:
        """Tokens of a step: one for each running request, and some of prompts, of which `context` are computed.

        prompts_per_stream: requests whose prompts could be computed now, by those whose streams would wait for them.
        """
        base_seconds = self.times.base_seconds(num_running)
        prompt_seconds = self._prompt_seconds(base_seconds, prompts_per_stream)
        num_prompt_tokens = int(prompt_seconds / self.times.seconds_per_token(context))
        least = -(-(num_running + MIN_PROMPT_TOKENS) // TILE_ROWS)
        return max(least, (num_running + num_prompt_tokens) // TILE_ROWS) * TILE_ROWS

    def _prompt_seconds(self, base_seconds: float, prompts_per_stream: float) -> float:
        """What is left of the limit; without one, the more the more prompts wait for each stream: many that come at
        once are not held up by the few that have begun, for a large step computes a token in half the time.
        """
        if self._max_step_seconds is not None:
            return self._max_step_seconds - base_seconds
        return max(PROMPT_SHARE * max(1.0, prompts_per_stream) * base_seconds, UNNOTICED_STEP_SECONDS - base_seconds)

"""One step: who is in it, and what stays the same from one step to the next. Made and kept by the StepPlanner."""

import numpy as np

from engined.protocol.plan import NewRequestData
from engined.scheduler.request import Request
from engined.scheduler.step_time import StepSize


class Step:
    """One step while it is planned; afterwards, who is in it."""

    __slots__ = (
        "decoding",
        "is_closed",
        "is_closed_to_background",
        "max_num_tokens",
        "new_block_ids",
        "new_requests",
        "num_scheduled_tokens",
        "others",
        "step_id",
        "token_budget",
    )

    def __init__(self, step_id: int, max_num_tokens: int) -> None:
        self.step_id = step_id
        self.max_num_tokens = max_num_tokens
        self.token_budget = max_num_tokens
        """What is left of them."""
        self.decoding: dict[str, Request] = {}
        """Running requests that get one token, and whose result is one token more; see Request.attention_at."""
        self.others: dict[str, Request] = {}
        self.num_scheduled_tokens: dict[str, int] = {}
        """Of the others."""
        self.new_block_ids: dict[str, list[int]] = {}
        self.new_requests: list[NewRequestData] = []
        self.is_closed = False
        """A request lost its place for want of blocks, so nobody enters."""
        self.is_closed_to_background = False
        """A background request lost its place, so no other one enters."""

    def add(self, request: Request, num_new_tokens: int) -> None:
        """Let a request that is not one of the `decoding` compute so many tokens."""
        self.others[request.request_id] = request
        self.num_scheduled_tokens[request.request_id] = num_new_tokens
        self.token_budget -= num_new_tokens

    def remove(self, request: Request) -> None:
        """Take back what a request was given, if anything."""
        if self.decoding.pop(request.request_id, None) is not None:
            self.token_budget += 1
        elif self.others.pop(request.request_id, None) is not None:
            self.token_budget += self.num_scheduled_tokens.pop(request.request_id)
        self.new_block_ids.pop(request.request_id, None)

    def all_scheduled_tokens(self) -> dict[str, int]:
        """Of everybody in the step, those that decode first."""
        num_scheduled_tokens = dict.fromkeys(self.decoding, 1)
        num_scheduled_tokens.update(self.num_scheduled_tokens)
        return num_scheduled_tokens

    @property
    def num_tokens(self) -> int:
        """Of everybody in the step."""
        return self.max_num_tokens - self.token_budget

    def size(self) -> StepSize:
        """What its time depends on; of a step that is planned, and whose results are not taken in yet."""
        num_requests = len(self.decoding) + len(self.others)
        num_pairs = sum(
            num_tokens * (self.others[request_id].num_computed_tokens + num_tokens // 2)
            for request_id, num_tokens in self.num_scheduled_tokens.items()
            if num_tokens > 1
        )
        return StepSize(num_requests, self.num_tokens - num_requests, num_pairs)

    def admits(self, request: Request) -> bool:
        """Whether a waiting request may enter in this step."""
        return not (self.is_closed_to_background if request.is_background else self.is_closed)


class SteadyState:
    """Steps that are alike: the same N requests decode, and nothing else, until the roster changes.

    Only those whose block is full are looked at, one by one; the others are a column of numbers.
    """

    def __init__(self, requests: dict[str, Request], num_changes: int) -> None:
        """`requests` decode in the step that is being planned; `num_changes` is that of the roster."""
        self.requests = requests
        self.num_changes = num_changes
        self.num_scheduled_tokens = dict.fromkeys(requests, 1)
        """Of all plans of this state."""
        self._rows = list(requests.values())
        self._num_steps_left = np.array([_num_steps_left(request) for request in self._rows])  # [N]

    def advance(self) -> list[int]:
        """Go on to the next step; the rows of the requests that cannot do without a look."""
        self._num_steps_left -= 1
        return np.flatnonzero(self._num_steps_left <= 0).tolist()

    def request(self, row: int) -> Request:
        """The request of a row."""
        return self._rows[row]

    def renew(self, row: int) -> None:
        """The request of a row has got what it needed."""
        self._num_steps_left[row] = _num_steps_left(self._rows[row])


def _num_steps_left(request: Request) -> int:
    """Steps until it needs a block, or attention, in the step that comes then: at least 1 if it can decode now."""
    return min(request.num_slots + 1, request.attention_at) - len(request.token_ids)

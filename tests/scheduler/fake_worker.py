"""A worker without a model: applies plans as a real one does, and checks that they are right.

The KV store is simulated. Slot (block, offset) holds a value that stands for the salt and all tokens up to there,
so that a wrong prefix hit, a missing block, a stale block or one that is overwritten in use is found when it is read.
"""

import numpy as np

from engined.protocol.engine import TokenLogprobs
from engined.protocol.plan import GrammarMasks, ModelRunnerOutput, NewRequestData, SchedulerOutput
from tests.scheduler.reference_model import next_token

Slot = tuple[int, int]


class WorkerRequest:
    """A request as the worker knows it: only what plans have said, and its own samples."""

    def __init__(self, data: NewRequestData, salt: str | None) -> None:
        self.data = data
        self.token_ids = data.token_ids.copy()
        self.block_ids = data.block_ids.copy()
        self.num_computed_tokens = data.num_computed_tokens
        self._contents: list[int] = []
        self._salt = salt

    def content(self, position: int) -> int:
        """What the KV entry at this position must stand for."""
        while len(self._contents) <= position:
            before = self._contents[-1] if self._contents else self._salt
            self._contents.append(hash((before, self.token_ids[len(self._contents)])))
        return self._contents[position]


def token_logprobs(token_ids: list[int], position: int) -> TokenLogprobs:
    """An entry that can be told from that of any other position."""
    return TokenLogprobs(token_ids=[token_ids[position]], logprobs=[-float(position)], rank=1)


def unpack(masks: GrammarMasks) -> dict[str, set[int]]:
    """The tokens that each request may sample."""
    rows = np.frombuffer(masks.rows, dtype=np.uint8).reshape(len(masks.request_ids), -1)
    bits = np.unpackbits(rows, axis=-1, bitorder="little")
    return {key: set(np.flatnonzero(row).tolist()) for key, row in zip(masks.request_ids, bits, strict=True)}


class FakeWorker:
    """Executes plans; `AssertionError` means that the scheduler sent a wrong one."""

    def __init__(self, block_size: int) -> None:
        self.requests: dict[str, WorkerRequest] = {}
        self.salts: dict[str, str | None] = {}
        """Filled by the test: a plan does not carry it, and it stands for what must not be shared."""
        self.constrained: dict[str, bool] = {}
        """Filled by the test too: who has a grammar."""
        self._block_size = block_size
        self._store: dict[Slot, int] = {}
        self._last_request_ids: list[str] = []

    def execute(
        self, plan: SchedulerOutput, masks: GrammarMasks | None = None, errors: dict[str, str] | None = None
    ) -> ModelRunnerOutput:
        """Run one step; requests in `errors` fail, and leave garbage in the blocks that only they hold."""
        allowed = {} if masks is None else unpack(masks)
        self._apply(plan)
        assert plan.num_tokens == sum(plan.num_scheduled_tokens.values())
        if plan.is_repeat:
            assert list(plan.num_scheduled_tokens) == self._last_request_ids
            assert set(plan.num_scheduled_tokens.values()) == {1}
        self._last_request_ids = list(plan.num_scheduled_tokens)
        starts = {request_id: self.requests[request_id].num_computed_tokens for request_id in plan.num_scheduled_tokens}
        newcomers = {data.request_id for data in plan.new_requests}
        for request_id, num_tokens in plan.num_scheduled_tokens.items():
            self._write(request_id, num_tokens, newcomers)
        for request_id in plan.num_scheduled_tokens:
            self._check_reads(self.requests[request_id])
        result = ModelRunnerOutput(errors=dict(errors or {}))
        for request_id in sorted(starts, key=lambda request_id: plan.num_scheduled_tokens[request_id] > 1):
            if request_id in result.errors:
                self._spoil(request_id, result)
            else:
                self._sample(request_id, starts[request_id], result, allowed.get(request_id))
        return result

    def _apply(self, plan: SchedulerOutput) -> None:
        for request_id in plan.removed_request_ids:
            del self.requests[request_id]
        for data in plan.new_requests:
            assert data.request_id not in self.requests, f"{data.request_id} was sent twice"
            assert 0 <= data.num_computed_tokens < len(data.token_ids)
            assert data.num_computed_tokens == 0 or data.sampling.prompt_logprobs is None
            self.requests[data.request_id] = WorkerRequest(data, self.salts[data.request_id])
        assert {data.request_id for data in plan.new_requests} <= plan.num_scheduled_tokens.keys()
        for request_id, block_ids in plan.new_block_ids.items():
            assert block_ids and request_id in plan.num_scheduled_tokens
            self.requests[request_id].block_ids += block_ids
        for request_id, token_ids in plan.forced_token_ids.items():
            assert token_ids and request_id in plan.num_scheduled_tokens
            assert request_id not in {data.request_id for data in plan.new_requests}
            self.requests[request_id].token_ids += token_ids

    def _write(self, request_id: str, num_tokens: int, newcomers: set[str]) -> None:
        """Nobody else holds what is written, but for newcomers that count on it in this very step."""
        request = self.requests[request_id]
        start = request.num_computed_tokens
        assert 1 <= num_tokens <= len(request.token_ids) - start
        for position in range(start, start + num_tokens):
            block_id = request.block_ids[position // self._block_size]
            holders = {other_id for other_id, other in self.requests.items() if block_id in other.block_ids}
            others = {
                other_id for other_id in holders - {request_id} if not self._counts_on(other_id, position, newcomers)
            }
            assert request_id in holders and not others, f"{request_id} writes to block {block_id}, which {others} hold"
            self._store[block_id, position % self._block_size] = request.content(position)
        request.num_computed_tokens += num_tokens

    def _counts_on(self, request_id: str, position: int, newcomers: set[str]) -> bool:
        return request_id in newcomers and position < self.requests[request_id].data.num_computed_tokens

    def _check_reads(self, request: WorkerRequest) -> None:
        for position in range(request.num_computed_tokens):
            slot = request.block_ids[position // self._block_size], position % self._block_size
            assert self._store.get(slot) == request.content(position), f"wrong KV entry at position {position}"

    def _spoil(self, request_id: str, result: ModelRunnerOutput) -> None:
        request = self.requests[request_id]
        if request.num_computed_tokens == len(request.token_ids):  # its token means nothing
            result.request_ids.append(request_id)
            result.sampled_token_ids.append([0])
        others = {block_id for key, other in self.requests.items() if key != request_id for block_id in other.block_ids}
        for block_id in set(request.block_ids) - others:
            for offset in range(self._block_size):
                self._store.pop((block_id, offset), None)

    def _sample(self, request_id: str, start: int, result: ModelRunnerOutput, allowed: set[int] | None) -> None:
        request = self.requests[request_id]
        sampling, num_prompt_tokens = request.data.sampling, request.data.num_prompt_tokens
        if sampling.prompt_logprobs is not None:
            end = min(request.num_computed_tokens + 1, num_prompt_tokens)
            entries = [token_logprobs(request.token_ids, position) for position in range(start + 1, end)]
            if entries:
                result.prompt_logprobs[request_id] = entries
        if request.num_computed_tokens == len(request.token_ids):
            assert (allowed is not None) == self.constrained[request_id], "a mask is missing, or nobody asked for it"
            token_id = next_token(request.token_ids, num_prompt_tokens, sampling, allowed)
            request.token_ids.append(token_id)
            result.request_ids.append(request_id)
            result.sampled_token_ids.append([token_id])
            if sampling.logprobs is not None:
                result.logprobs[request_id] = [token_logprobs(request.token_ids, len(request.token_ids) - 1)]

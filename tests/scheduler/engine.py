"""A scheduler with a fake worker, and a record of all that its clients were told. Shared by the scheduler tests."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from engined.cache.kv_cache_manager import KVCacheManager
from engined.config.schema import SchedulerConfig
from engined.protocol.engine import (
    EngineCoreOutputs,
    EngineCoreRequest,
    Finished,
    FinishReason,
    Started,
    TokenLogprobs,
)
from engined.protocol.grammar import GrammarSpec
from engined.protocol.plan import SchedulerOutput
from engined.protocol.sampling import SamplingParams
from engined.scheduler.request import Request
from engined.scheduler.scheduler import Scheduler
from tests.scheduler.fake_worker import FakeWorker, token_logprobs
from tests.scheduler.reference_model import run_alone
from tests.scheduler.toy_grammar import FAULTY, ToyMatcher


@dataclass
class Record:
    """Everything that a client heard about one request."""

    message: EngineCoreRequest
    client_index: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    started: Started | None = None
    finished: Finished | None = None


class FakeEngine:
    """Steps a scheduler as the engine core does; every output is checked on arrival."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        max_model_len: int = 200,
        enable_prefix_caching: bool = True,
        **config: Any,
    ) -> None:
        self.config = SchedulerConfig(**{"max_step_ms": 0.0, **config})
        self.num_blocks = num_blocks
        self.max_sequence_len = min(max_model_len, num_blocks * block_size)
        self.cache = KVCacheManager(num_blocks, block_size, enable_prefix_caching, b"secret")
        self.time = 0.0
        self.scheduler = Scheduler(self.config, self.cache, max_model_len, clock=lambda: self.time)
        self.worker = FakeWorker(block_size)
        self.records: dict[str, Record] = {}
        self.gone_clients: set[int] = set()

    def add(
        self,
        request_id: str,
        prompt: list[int],
        client: int = 0,
        priority: int = 0,
        salt: str | None = None,
        background: bool = False,
        grammar: GrammarSpec | None = None,
        **sampling: Any,
    ) -> Request:
        """Add a request; sampling fields by keyword."""
        sampling = {"max_tokens": 4, "eos_token_ids": (), **sampling}
        message = EngineCoreRequest(
            request_id=request_id,
            prompt_token_ids=prompt,
            sampling=SamplingParams(**sampling),
            arrival_time=self.time,
            priority=priority,
            cache_salt=salt,
            is_background=background,
            grammar=grammar,
        )
        self.records[request_id] = Record(message, client)
        self.worker.salts[request_id] = salt
        self.worker.constrained[request_id] = grammar is not None
        request = Request(message, client, self.cache.hasher)
        if grammar is not None:
            request.matcher = ToyMatcher(is_faulty=grammar is FAULTY, eos_token_ids=message.sampling.eos_token_ids)
        self.scheduler.add_request(request)
        return request

    def step(
        self, *, in_flight: Callable[[], None] | None = None, errors: dict[str, str] | None = None
    ) -> SchedulerOutput:
        """One step; `in_flight` is called between plan and result. Returns the plan."""
        self.time += 1.0
        running_before = self.running
        plan = self.scheduler.schedule()
        self._check_plan(plan, running_before)
        result = self.worker.execute(plan, self.scheduler.grammar_masks(plan), errors)
        self.scheduler.publish_output()
        if in_flight is not None:
            in_flight()
        self.receive(self.scheduler.update_from_output(plan, result))
        return plan

    def run(self, max_steps: int = 10_000) -> int:
        """Step until nothing is left. Returns the number of steps."""
        for num_steps in range(max_steps):
            if not self.scheduler.has_work():
                self.receive(self.scheduler.take_pending_outputs())
                return num_steps
            self.step()
        raise AssertionError(f"not done after {max_steps} steps")

    @property
    def running(self) -> list[str]:
        """Ids of the running requests, in order."""
        return [request.request_id for request in self.scheduler._roster.running]

    def receive(self, outputs_of_client: dict[int, EngineCoreOutputs]) -> None:
        """Take outputs as the frontends do."""
        for client_index, outputs in outputs_of_client.items():
            assert client_index not in self.gone_clients, "news for a client that is gone"
            assert outputs.stats is not None and outputs.timestamp == self.time
            assert outputs.request_ids or outputs.started or outputs.finished or outputs.prompt_logprobs
            self._receive(client_index, outputs)

    def _receive(self, client_index: int, outputs: EngineCoreOutputs) -> None:
        news = {*outputs.request_ids, *outputs.prompt_logprobs, *outputs.finished, *outputs.started}
        for request_id in news:
            record = self.records[request_id]
            assert record.client_index == client_index, f"{request_id} belongs to client {record.client_index}"
            assert record.finished is None, f"{request_id} had already ended"
        for request_id, started in outputs.started.items():
            assert self.records[request_id].started is None, f"{request_id} started twice"
            self.records[request_id].started = started
        for request_id, token_ids in zip(outputs.request_ids, outputs.new_token_ids, strict=True):
            assert token_ids and self.records[request_id].started is not None
            self.records[request_id].token_ids += token_ids
        for request_id, entries in outputs.logprobs.items():
            self.records[request_id].logprobs += entries
        for request_id, entries in outputs.prompt_logprobs.items():
            assert entries and self.records[request_id].started is not None
            self.records[request_id].prompt_logprobs += entries
        for request_id, finished in outputs.finished.items():
            self.records[request_id].finished = finished
            self._check_result(self.records[request_id], finished)

    def _check_result(self, record: Record, finished: Finished) -> None:
        """Compare with the same request run alone."""
        expected = run_alone(record.message, self.max_sequence_len)
        is_complete = finished.reason in (FinishReason.STOP, FinishReason.LENGTH)
        if is_complete:
            assert record.token_ids == expected.token_ids
            assert (finished.reason, finished.stop_token_id) == (expected.reason, expected.stop_token_id)
        else:
            assert record.token_ids == expected.token_ids[: len(record.token_ids)]
        assert (finished.error is not None) == (finished.reason is FinishReason.ERROR)

        prompt, sampling = record.message.prompt_token_ids, record.message.sampling
        sequence = prompt + record.token_ids
        positions = range(len(prompt), len(sequence)) if sampling.logprobs is not None else ()
        assert record.logprobs == [token_logprobs(sequence, position) for position in positions]
        positions = range(1, len(prompt)) if sampling.prompt_logprobs is not None else ()
        all_entries = [token_logprobs(prompt, position) for position in positions]
        assert record.prompt_logprobs == all_entries[: len(record.prompt_logprobs)]
        assert not is_complete or len(record.prompt_logprobs) == len(all_entries)

    def _check_plan(self, plan: SchedulerOutput, running_before: list[str]) -> None:
        num_scheduled = plan.num_scheduled_tokens
        assert 1 <= plan.num_tokens <= self.scheduler.stats().max_step_tokens <= self.config.max_num_batched_tokens
        assert len(num_scheduled) <= self.config.max_num_seqs
        assert max(num_scheduled.values()) <= (self.config.long_prefill_token_threshold or plan.num_tokens)
        # No running request skips a step, except by preemption; and then only better ones enter.
        preempted = [request_id for request_id in running_before if request_id not in self.running]
        assert [*running_before] == [key for key in running_before if (key in num_scheduled) != (key in preempted)]
        newcomers = [data.request_id for data in plan.new_requests]
        assert not (preempted and newcomers) or (
            self.background(preempted) == preempted and not self.background(newcomers)
        )
        assert set(preempted) <= set(plan.removed_request_ids)
        assert num_scheduled.keys() == {*self.running}
        self._check_background(plan)

    def background(self, request_ids: list[str]) -> list[str]:
        """Those of the ids that are background requests."""
        return [request_id for request_id in request_ids if self.records[request_id].message.is_background]

    def _check_background(self, plan: SchedulerOutput) -> None:
        """Beside a request that waits, background requests get what it could not use: no seat, no block, no token."""
        waiting = [request.request_id for request in self.scheduler._roster.waiting._requests]
        if self.background(waiting) != waiting and (background := self.background(self.running)):
            assert all(plan.num_scheduled_tokens[request_id] == 1 for request_id in background)
            assert plan.num_tokens == self.scheduler.stats().max_step_tokens

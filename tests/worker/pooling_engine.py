"""A whole pooling engine without its sockets: scheduler, cache, executor and model in the test's own process."""

import queue
from collections.abc import Sequence
from pathlib import Path

from engined.cache.kv_cache_manager import KVCacheManager
from engined.cache.sequence_cache import NoCache, SequenceCache
from engined.checkpoint.load import load_model_info
from engined.config.model_runner import resolve_runner
from engined.config.schema import Config, SchedulerConfig
from engined.core.commands import AddRequest
from engined.core.engine_core import EngineCore
from engined.core.grammar_queue import GrammarQueue
from engined.core.request_factory import RequestFactory
from engined.executor.uniproc import UniProcExecutor
from engined.grammar.matcher_factory import MatcherFactory
from engined.process.progress import report_nothing
from engined.protocol.boot import EngineSettings
from engined.protocol.engine import EngineCoreOutputs, EngineCoreRequest, FinishReason
from engined.protocol.pooling import PoolingParams
from engined.protocol.sampling import SamplingParams
from engined.scheduler.scheduler import Scheduler

NUM_BLOCKS = 64


class PoolingEngine:
    """Pools sequences of the model in `folder`, fp32, one compute thread."""

    def __init__(self, folder: Path, **scheduler: int) -> None:
        config = Config(scheduler=SchedulerConfig(**scheduler))
        info = resolve_runner(load_model_info(folder), "pooling")
        settings = EngineSettings(
            config=config,
            model_info=info,
            dtype="float32",
            kv_cache_dtype="float32",
            num_kv_blocks=0 if info.encoder is not None else NUM_BLOCKS,
            max_model_len=min(info.default_max_len, NUM_BLOCKS * config.cache.block_size),
            num_threads=1,
        )
        executor = UniProcExecutor(settings, report_nothing)
        executor.initialize()
        cache: SequenceCache = NoCache(config.scheduler.max_num_batched_tokens)
        if info.encoder is None:
            cache = KVCacheManager(NUM_BLOCKS, config.cache.block_size, True, b"secret")
        scheduler_ = Scheduler(config.scheduler, cache, settings.max_model_len, clock=lambda: 0.0)
        grammars = GrammarQueue(MatcherFactory(info, compile_deadline_s=10.0), queue.SimpleQueue())
        self.core = EngineCore(scheduler_, cache, executor, grammars, info.runner)
        self.outputs: list[EngineCoreOutputs] = []
        self._factory = RequestFactory(settings, cache.hasher)
        self._num_requests = 0

    def pool(self, prompts: Sequence[Sequence[int]], *params: PoolingParams) -> list[list[float]]:
        """The results of some prompts that arrive at once; `params` are one for each, or none for the defaults.

        A sequence that failed has none; its error is in `errors`.
        """
        request_ids = []
        for index, prompt in enumerate(prompts):
            self._num_requests += 1
            message = EngineCoreRequest(
                request_id=f"request {self._num_requests}",
                prompt_token_ids=list(prompt),
                sampling=SamplingParams(max_tokens=0),
                arrival_time=0.0,
                pooling=params[index] if params else PoolingParams(),
            )
            request_ids.append(message.request_id)
            self.core.handle(AddRequest(self._factory.make(message, 0)))
        self.outputs = []
        while self.core.has_work():
            self.outputs += [send.message for send in self.core.step(lambda: None)]
        pooled: dict[str, list[float]] = {}
        for outputs in self.outputs:
            pooled |= outputs.pooled
            assert not outputs.request_ids and outputs.pooled.keys() <= outputs.finished.keys()
            assert all(outputs.finished[request_id].reason is FinishReason.STOP for request_id in outputs.pooled)
        return [pooled[request_id] for request_id in request_ids if request_id in pooled]

    @property
    def errors(self) -> list[str]:
        """Of the sequences of the last call that failed."""
        ends = [finished for outputs in self.outputs for finished in outputs.finished.values()]
        return [finished.error for finished in ends if finished.error is not None]

    @property
    def num_cached_tokens(self) -> list[int]:
        """What each sequence of the last call found in the prefix cache."""
        return [started.num_cached_tokens for outputs in self.outputs for started in outputs.started.values()]

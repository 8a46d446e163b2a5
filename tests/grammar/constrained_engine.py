"""A whole generating engine without its sockets, and its compile threads: in the test's own process."""

import os
import queue
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engined.cache.kv_cache_manager import KVCacheManager
from engined.checkpoint.load import load_model_info
from engined.config.directories import cache_directory
from engined.config.schema import Config, SchedulerConfig
from engined.core.commands import AddRequest, Command, Send
from engined.core.engine_core import EngineCore
from engined.core.grammar_queue import GrammarQueue
from engined.core.request_factory import RequestFactory
from engined.executor.uniproc import UniProcExecutor
from engined.grammar.matcher_factory import MatcherFactory
from engined.process.progress import report_nothing
from engined.protocol.boot import EngineSettings
from engined.protocol.engine import EngineCoreOutputs, EngineCoreRequest, Finished, TokenLogprobs
from engined.protocol.grammar import GrammarSpec
from engined.protocol.reasoning import ReasoningSpec
from engined.protocol.sampling import SamplingParams
from engined.scheduler.scheduler import Scheduler
from engined.tokenization.tokenizer import load_tokenizer

BLOCK_SIZE = 16


@dataclass
class Answer:
    """What a client heard of one request."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finished: Finished | None = None


class ConstrainedEngine:
    """Generates with the default model in fp32, in a KV cache of `num_blocks`."""

    def __init__(self, gguf: Path, num_blocks: int = 64) -> None:
        config = Config(scheduler=SchedulerConfig(max_num_seqs=8))
        info = load_model_info(str(gguf))
        settings = EngineSettings(
            config=config,
            model_info=info,
            dtype="float32",
            kv_cache_dtype="float32",
            num_kv_blocks=num_blocks,
            max_model_len=num_blocks * BLOCK_SIZE,
            num_threads=2,
            kernel_cache=str(cache_directory(os.environ) / "kernels"),
        )
        self.eos_token_ids = info.eos_token_ids
        self.tokenizer = load_tokenizer(info)
        self.inputs: queue.SimpleQueue[Command] = queue.SimpleQueue()
        matchers = MatcherFactory(info, compile_deadline_s=10.0)
        executor = UniProcExecutor(settings, report_nothing)
        executor.initialize()
        cache = KVCacheManager(num_blocks, BLOCK_SIZE, True, b"secret")
        self.scheduler = Scheduler(config.scheduler, cache, settings.max_model_len, clock=lambda: 0.0)
        self.core = EngineCore(self.scheduler, cache, executor, GrammarQueue(matchers, self.inputs), "generate")
        self._factory = RequestFactory(settings, cache.hasher)
        self.answers: dict[str, Answer] = {}
        self.num_steps = 0

    def add(
        self,
        request_id: str,
        prompt: str,
        grammar: GrammarSpec | None,
        reasoning: ReasoningSpec | None = None,
        tenant: str = "",
        **sampling: Any,
    ) -> None:
        """Hand one request in; sampling fields by keyword."""
        message = EngineCoreRequest(
            request_id=request_id,
            prompt_token_ids=self.tokenizer.encode(prompt),
            sampling=SamplingParams(**{"max_tokens": 100, "eos_token_ids": self.eos_token_ids} | sampling),
            arrival_time=0.0,
            grammar=grammar,
            reasoning=reasoning,
            tenant=tenant,
        )
        self.answers[request_id] = Answer()
        self.handle(AddRequest(self._factory.make(message, 0)))

    def handle(self, command: Command) -> None:
        """Let the core handle one command."""
        self._take(self.core.handle(command))

    def wait_for_grammar(self) -> None:
        """Handle what the next compilation says."""
        self.handle(self.inputs.get(timeout=20))

    def step(self) -> None:
        """Run one step."""
        self.num_steps += 1
        self._take(self.core.step(lambda: None))

    def run(self) -> None:
        """Run until nothing is left."""
        while self.core.has_work():
            self.step()
        self._take(self.core.take_pending_outputs())

    def generate(
        self,
        grammar: GrammarSpec | None,
        prompt: str = "The answer:",
        reasoning: ReasoningSpec | None = None,
        **sampling: Any,
    ) -> tuple[str, Finished]:
        """Text without the stop token, and the end, of one request that runs alone."""
        request_id = f"request {len(self.answers)}"
        self.add(request_id, prompt, grammar, reasoning, **sampling)
        if grammar is not None or reasoning is not None:
            self.wait_for_grammar()
        self.run()
        return self.text(request_id)

    def text(self, request_id: str) -> tuple[str, Finished]:
        """Text without the stop token, and the end, of a request that has ended."""
        answer = self.answers[request_id]
        assert answer.finished is not None
        is_stopped_by_token = answer.finished.reason == "stop" and not answer.finished.is_grammar_complete
        token_ids = answer.token_ids[:-1] if is_stopped_by_token else answer.token_ids
        return self.tokenizer.decode(token_ids), answer.finished

    def _take(self, sends: list[Send]) -> None:
        for send in sends:
            assert isinstance(send.message, EngineCoreOutputs)
            outputs = send.message
            for request_id, token_ids in zip(outputs.request_ids, outputs.new_token_ids, strict=True):
                self.answers[request_id].token_ids += token_ids
            for request_id, logprobs in outputs.logprobs.items():
                self.answers[request_id].logprobs += logprobs
            for request_id, finished in outputs.finished.items():
                assert self.answers[request_id].finished is None
                self.answers[request_id].finished = finished

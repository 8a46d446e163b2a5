"""One rank: its threads, its process group, its memory, the model and the runner. Lives in the core's process when it
is the only rank (`UniProcExecutor`), else in a process of its own (`engined.worker.main`)."""

import ctypes
import logging
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import torch

from engined import faults
from engined.attention.backend import AttentionSpec
from engined.attention.selector import select_backend
from engined.config.resources import own_cpus
from engined.errors import ConfigError
from engined.kernels.cpu.library import load_cpu_kernels
from engined.layers.context import LayerContext
from engined.layers.tensor_parallel import TensorParallelGroup
from engined.models.bert import BertModel
from engined.models.causal_lm import CausalLM
from engined.models.loader import open_checkpoint
from engined.models.registry import build_encoder, build_model
from engined.process.progress import ProgressReporter
from engined.protocol.boot import EngineSettings
from engined.protocol.plan import GrammarMasks, ModelRunnerOutput, NewRequestData, SchedulerOutput
from engined.protocol.pooling import PoolingParams
from engined.protocol.sampling import SamplingParams
from engined.trace.tracer import NO_TRACK, Track
from engined.worker.distributed import create_group
from engined.worker.encoder_runner import EncoderRunner
from engined.worker.input_batch import BatchShape
from engined.worker.kv_pages import KVPages
from engined.worker.model_runner import ModelRunner
from engined.worker.pooling_runner import PoolingRunner

logger = logging.getLogger(__name__)

_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "int8": torch.int8}
_NEEDS_KERNELS = (
    "needs the CPU kernels, which are not built here (a warning above says why): install g++ and let it write the "
    "cache folder"
)
_WARM_UP_TOKENS = 64
_WARM_UP_SECONDS = 20.0
"""Of the longest silence of a warm-up; a slow machine warms up with a shorter prompt."""


class Worker:
    """Executes plans on one rank. All calls come from one thread."""

    def __init__(
        self,
        settings: EngineSettings,
        rank: int,
        report_progress: ProgressReporter,
        rendezvous: str | None = None,
        track: Track = NO_TRACK,
    ) -> None:
        self._settings = settings
        self._rank = rank
        self._report_progress = report_progress
        self._rendezvous = rendezvous
        self._track = track
        self._device = torch.device("cpu")
        self._runner: ModelRunner | PoolingRunner | EncoderRunner | None = None
        self._kv_pages: KVPages | None = None

    def initialize(self) -> None:
        """Load the weights, allocate the KV cache, warm up. Raises ModelError when the checkpoint is not usable."""
        torch.set_num_threads(self._settings.num_threads)
        size = self._settings.config.parallel.tensor_parallel_size
        if size > 1:
            self._report_progress("meeting the other ranks")
        group = create_group(self._rank, size, self._rendezvous, self._device)
        started = time.monotonic()
        context = self._create_context(group)
        self._report_progress("loading weights")
        faults.point("load")
        with self._track.span("load weights"):
            if self._settings.model_info.encoder is not None:
                self._runner = EncoderRunner(self._load_encoder(context), self._track)
            else:
                self._runner = self._create_decoder_runner(self._load_decoder(context), group)
        if self._settings.config.parallel.bind_threads:
            if context.kernels is None:
                raise ConfigError(f"--bind-threads {_NEEDS_KERNELS}, or leave out --bind-threads")
            # Not before the weights are loaded: that takes threads of its own, which would stay on this one's core.
            context.kernels.bind_threads(own_cpus(self._rank, size, self._settings.num_threads))
        loaded = time.monotonic()
        self._report_progress("warming up")
        faults.point("warm-up")
        with self._track.span("warm up"):
            self._warm_up(group)
        logger.info(
            "weights loaded in %.2f s, warm-up took %.2f s, %d compute threads",
            loaded - started,
            time.monotonic() - loaded,
            self._settings.num_threads,
        )

    def execute_model(self, plan: SchedulerOutput) -> ModelRunnerOutput | None:
        """First call of a step: None; for a pooling model the only one, with the step's result."""
        assert self._runner is not None, "initialize first"
        faults.point("prefill" if plan.new_requests else "decode")
        with self._track.span("execute", {"step": plan.step_id, "tokens": plan.num_tokens}):
            if self._kv_pages is not None:
                self._kv_pages.note_step()
                if plan.new_requests or plan.new_block_ids:
                    self._kv_pages.note_use(_block_ids(plan))
            if isinstance(self._runner, ModelRunner):
                self._runner.execute_model(plan)
                return None
            return self._runner.execute_model(plan)

    def sample_tokens(self, masks: GrammarMasks | None = None) -> ModelRunnerOutput:
        """Second call of a step; see ModelRunner."""
        assert isinstance(self._runner, ModelRunner), "a pooling model samples nothing"
        with self._track.span("sample"):
            return self._runner.sample_tokens(masks)

    def release_memory(self) -> None:
        """Give back to the system what forwards worked in; glibc keeps the activations of past batches otherwise."""
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:  # musl has no such call, and no such habit
            trim(0)

    def _create_context(self, group: TensorParallelGroup) -> LayerContext:
        kernels = None
        if self._settings.kernel_cache is not None and self._device.type == "cpu":
            kernels = load_cpu_kernels(Path(self._settings.kernel_cache), self._report_progress)
        quantization = self._settings.config.model.quantization
        if quantization != "none" and kernels is None:
            raise ConfigError(f"--quantization {quantization} {_NEEDS_KERNELS}, or leave out --quantization")
        return LayerContext(
            dtype=_DTYPES[self._settings.dtype],
            device=self._device,
            tp=group,
            kernels=kernels,
            quantization=quantization,
        )

    def _load_encoder(self, context: LayerContext) -> BertModel:
        model = build_encoder(self._settings.model_info, context)
        model.load(open_checkpoint(self._settings.model_info), self._report_progress)
        return model

    def _load_decoder(self, context: LayerContext) -> CausalLM:
        model = build_model(self._settings.model_info, context)
        model.load(open_checkpoint(self._settings.model_info), self._report_progress)
        self._report_progress("allocating the KV cache")
        self._allocate_kv_cache(model, context)
        return model

    def _create_decoder_runner(self, model: CausalLM, group: TensorParallelGroup) -> ModelRunner | PoolingRunner:
        config, info = self._settings.config, self._settings.model_info
        shape = BatchShape(config.scheduler.max_num_seqs, self._settings.max_model_len, config.cache.block_size)
        if info.runner == "pooling":
            return PoolingRunner(model, shape, self._track)
        return ModelRunner(model, shape, group, info.vocab_size, self._track)

    def _allocate_kv_cache(self, model: CausalLM, context: LayerContext) -> None:
        info, size = self._settings.model_info, context.tp.size
        backend = select_backend(
            AttentionSpec(
                device=context.device,
                dtype=context.dtype,
                kv_cache_dtype=_DTYPES[self._settings.kv_cache_dtype],
                num_heads=info.num_attention_heads // size,
                num_kv_heads=info.num_kv_heads // size,
                head_dim=info.head_dim,
                block_size=self._settings.config.cache.block_size,
                sliding_window=info.sliding_window,
            ),
            context.kernels,
        )
        model.bind(backend, self._settings.num_kv_blocks)
        if backend.block_memory is not None:
            self._kv_pages = KVPages(backend.block_memory)

    def _warm_up(self, group: TensorParallelGroup) -> None:
        """Run two prompts, each with a decode step if there are any, so that the first request does not pay for the
        libraries' own set-up.

        The first is one token long, and tells how long the second may be on this machine: that gives no sign of life.
        """
        settings = self._settings
        longest = min(_WARM_UP_TOKENS, settings.max_model_len - (settings.model_info.runner == "generate"))
        started = time.monotonic()
        self._run_prompt(1)
        seconds = time.monotonic() - started
        # All ranks must run the same prompt.
        num_tokens = torch.tensor([max(1, min(longest, int(_WARM_UP_SECONDS / seconds)))])
        group.broadcast(num_tokens)
        self._run_prompt(int(num_tokens))

    def _run_prompt(self, num_tokens: int) -> None:
        """A request of nobody. The blocks it writes are free: no prefix of them is ever looked up."""
        settings, block_size = self._settings, self._settings.config.cache.block_size
        is_pooling = settings.model_info.runner == "pooling"
        new = NewRequestData(
            request_id="warm-up",
            token_ids=[0] * num_tokens,
            num_prompt_tokens=num_tokens,
            sampling=SamplingParams(max_tokens=2, temperature=1.0, top_p=0.9),
            block_ids=list(range(min(num_tokens // block_size + 1, settings.num_kv_blocks))),
            num_computed_tokens=0,
            pooling=PoolingParams() if is_pooling else None,
        )
        prefill = SchedulerOutput(
            step_id=0, new_requests=[new], num_scheduled_tokens={"warm-up": num_tokens}, num_tokens=num_tokens
        )
        decode = SchedulerOutput(step_id=1, num_scheduled_tokens={"warm-up": 1}, num_tokens=1)
        self._report_progress("warming up", f"a prompt of {num_tokens} tokens")
        self.execute_model(prefill)
        if not is_pooling:
            self.sample_tokens()
            self._report_progress("warming up", "one more token")
            self.execute_model(decode)
            self.sample_tokens()
        self.execute_model(SchedulerOutput(step_id=2, removed_request_ids=["warm-up"]))


def _block_ids(plan: SchedulerOutput) -> Iterator[int]:
    """Those that requests hold from this plan on."""
    return chain(*(new.block_ids for new in plan.new_requests), *plan.new_block_ids.values())

"""One rank: its threads, its process group, its memory, the model and the runner. Lives in the core's process when it
is the only rank (`UniProcExecutor`), else in a process of its own (`engined.worker.main`)."""

import ctypes
import logging
import time
from collections.abc import Callable

import torch

from engined.attention.backend import AttentionSpec
from engined.attention.selector import select_backend
from engined.layers.tensor_parallel import TensorParallelGroup
from engined.models.causal_lm import CausalLM
from engined.models.loader import open_checkpoint
from engined.models.registry import build_model
from engined.protocol.boot import EngineSettings
from engined.protocol.plan import ModelRunnerOutput, NewRequestData, SchedulerOutput
from engined.protocol.sampling import SamplingParams
from engined.worker.distributed import create_group
from engined.worker.input_batch import BatchShape
from engined.worker.model_runner import ModelRunner

logger = logging.getLogger(__name__)

_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
_WARM_UP_TOKENS = 64


class Worker:
    """Executes plans on one rank. All calls come from one thread."""

    def __init__(
        self,
        settings: EngineSettings,
        rank: int,
        report_progress: Callable[[str], None],
        rendezvous: str | None = None,
    ) -> None:
        self._settings = settings
        self._rank = rank
        self._report_progress = report_progress
        self._rendezvous = rendezvous
        self._device = torch.device("cpu")
        self._runner: ModelRunner | None = None

    def initialize(self) -> None:
        """Load the weights, allocate the KV cache, warm up. Raises ModelError when the checkpoint is not usable."""
        torch.set_num_threads(self._settings.num_threads)
        size = self._settings.config.parallel.tensor_parallel_size
        group = create_group(self._rank, size, self._rendezvous, self._device)
        self._report_progress("loading weights")
        started = time.monotonic()
        model = self._load_model(group)
        loaded = time.monotonic()
        self._report_progress("allocating the KV cache")
        self._allocate_kv_cache(model)
        config = self._settings.config
        shape = BatchShape(config.scheduler.max_num_seqs, self._settings.max_model_len, config.cache.block_size)
        self._runner = ModelRunner(model, shape, group, self._settings.model_info.vocab_size)
        self._report_progress("warming up")
        self._warm_up()
        logger.info(
            "weights loaded in %.2f s, cache and warm-up took %.2f s, %d compute threads",
            loaded - started,
            time.monotonic() - loaded,
            self._settings.num_threads,
        )

    def execute_model(self, plan: SchedulerOutput) -> None:
        """First call of a step; see ModelRunner."""
        assert self._runner is not None, "initialize first"
        self._runner.execute_model(plan)

    def sample_tokens(self) -> ModelRunnerOutput:
        """Second call of a step; see ModelRunner."""
        assert self._runner is not None, "initialize first"
        return self._runner.sample_tokens()

    def release_memory(self) -> None:
        """Give memory that was freed back to the system: glibc keeps the activations of past batches otherwise."""
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:  # musl has no such call, and no such habit
            trim(0)

    def _load_model(self, group: TensorParallelGroup) -> CausalLM:
        model = build_model(self._settings.model_info, _DTYPES[self._settings.dtype], group, self._device)
        model.load(open_checkpoint(self._settings.model_info))
        return model

    def _allocate_kv_cache(self, model: CausalLM) -> None:
        info, size = self._settings.model_info, self._settings.config.parallel.tensor_parallel_size
        backend = select_backend(
            AttentionSpec(
                device=self._device,
                dtype=_DTYPES[self._settings.dtype],
                kv_cache_dtype=_DTYPES[self._settings.kv_cache_dtype],
                num_heads=info.num_attention_heads // size,
                num_kv_heads=info.num_kv_heads // size,
                head_dim=info.head_dim,
                block_size=self._settings.config.cache.block_size,
                sliding_window=info.sliding_window,
            )
        )
        for layer in model.attention_layers():
            layer.bind(backend, backend.allocate_kv_cache(self._settings.num_kv_blocks))

    def _warm_up(self) -> None:
        """Run a prefill and a decode step, so that the first request does not pay for the libraries' own set-up.

        The blocks it writes are free: no prefix of them is ever looked up.
        """
        block_size = self._settings.config.cache.block_size
        num_tokens = min(
            _WARM_UP_TOKENS, self._settings.max_model_len - 1, self._settings.num_kv_blocks * block_size - 1
        )
        new = NewRequestData(
            request_id="warm-up",
            token_ids=[0] * num_tokens,
            num_prompt_tokens=num_tokens,
            sampling=SamplingParams(max_tokens=2, temperature=1.0, top_p=0.9),
            block_ids=list(range(num_tokens // block_size + 1)),
            num_computed_tokens=0,
        )
        prefill = SchedulerOutput(
            step_id=0, new_requests=[new], num_scheduled_tokens={"warm-up": num_tokens}, num_tokens=num_tokens
        )
        decode = SchedulerOutput(step_id=1, num_scheduled_tokens={"warm-up": 1}, num_tokens=1)
        for plan in (prefill, decode):
            self.execute_model(plan)
            self.sample_tokens()
        self.execute_model(SchedulerOutput(step_id=2, removed_request_ids=["warm-up"]))

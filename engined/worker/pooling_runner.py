"""Runs one step of a pooling decoder on one rank: the state of each sequence's last token is its embedding.

Prompts go through the paged KV cache as they do for generation, so they may come in chunks and share prefixes.
"""

import torch

from engined.attention.context import forward_context
from engined.models.causal_lm import CausalLM
from engined.protocol.plan import ModelRunnerOutput, SchedulerOutput
from engined.trace.tracer import NO_TRACK, Track
from engined.worker.input_batch import BatchShape, InputBatch
from engined.worker.model_inputs import ModelInputs, build_inputs
from engined.worker.pooler import finish_embeddings, to_output


class PoolingRunner:
    """Owns the batch of one rank; the model is handed in."""

    def __init__(self, model: CausalLM, shape: BatchShape, track: Track = NO_TRACK) -> None:
        self._model = model
        self._track = track
        self._batch = InputBatch(shape)

    @torch.inference_mode()
    def execute_model(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Apply the plan, run the forward, and pool the sequences whose last token it computed."""
        with self._track.span("apply"):
            self._batch.apply(plan)
        self._model.zero_kv_blocks(plan.block_ids_to_zero)
        if plan.num_tokens == 0:
            return ModelRunnerOutput()
        with self._track.span("build inputs"):
            inputs = build_inputs(self._batch)
        with self._track.span("forward"), forward_context(inputs.attention):
            hidden = self._model.forward(inputs.input_ids, inputs.positions)
        self._batch.num_computed_tokens[inputs.rows] += inputs.num_scheduled
        return self._pool(inputs, hidden)

    def _pool(self, inputs: ModelInputs, hidden: torch.Tensor) -> ModelRunnerOutput:
        rows = inputs.rows[inputs.sampling_requests].tolist()
        states = hidden[torch.from_numpy(inputs.logits_indices)].float()
        params = [wish for row in rows if (wish := self._batch.pooling[row]) is not None]
        assert len(params) == len(rows), "a pooling model was asked for tokens"
        embeddings = finish_embeddings(states, params, self._model.info)
        return to_output([self._batch.request_ids[row] for row in rows], embeddings)

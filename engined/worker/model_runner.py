"""Runs one step on one rank: applies the plan to the persistent batch, runs the forward, samples.

`execute_model` parks the logits; `sample_tokens` ends the step. With several ranks all of them hold the batch and run
the forward; rank 0 samples and broadcasts the tokens, so that the ranks cannot drift apart.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engined.attention.context import forward_context
from engined.layers.tensor_parallel import TensorParallelGroup
from engined.models.causal_lm import CausalLM
from engined.protocol.engine import TokenLogprobs
from engined.protocol.plan import GrammarMasks, ModelRunnerOutput, SchedulerOutput
from engined.trace.tracer import NO_TRACK, Track
from engined.worker.input_batch import BatchShape, InputBatch
from engined.worker.model_inputs import ModelInputs, build_inputs
from engined.worker.sampler.grammar_mask import AllowedTokens, unpack_masks
from engined.worker.sampler.logprobs import top_logprobs
from engined.worker.sampler.metadata import gather_metadata
from engined.worker.sampler.penalties import TokenCounts
from engined.worker.sampler.sampler import SamplerOutput, sample

# Rows of prompt logits that exist at once: 64 rows of a 150k vocabulary are 38 MB in fp32.
_PROMPT_LOGITS_ROWS = 64
_NOTHING_ALLOWED = (
    "no token satisfies the grammar and the request's allowed_token_ids, bad_words and min_tokens at once: relax them"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ParkedStep:
    """What waits between the two calls of a step."""

    inputs: ModelInputs
    logits: torch.Tensor | None
    """[S, V] of the model's type on rank 0; None on the others, and when nobody samples."""
    prompt_logprobs: dict[str, list[TokenLogprobs]]


class ModelRunner:
    """Owns the batch and the token counts of one rank; the model is handed in."""

    def __init__(
        self,
        model: CausalLM,
        shape: BatchShape,
        group: TensorParallelGroup,
        vocab_size: int,
        track: Track = NO_TRACK,
    ) -> None:
        self._track = track
        self._model = model
        self._group = group
        self._batch = InputBatch(shape)
        self._counts = TokenCounts(shape.max_num_seqs, vocab_size)
        self._parked: _ParkedStep | None = None

    @torch.inference_mode()
    def execute_model(self, plan: SchedulerOutput) -> None:
        """Apply the plan and run the forward; the logits stay here until `sample_tokens`."""
        self._parked = None
        with self._track.span("apply"):
            self._update_batch(plan)
        self._model.zero_kv_blocks(plan.block_ids_to_zero)
        if plan.num_tokens == 0:
            return
        with self._track.span("build inputs"):
            inputs = build_inputs(self._batch)
        with self._track.span("forward"), forward_context(inputs.attention):
            hidden = self._model.forward(inputs.input_ids, inputs.positions)
        prompt_logprobs = self._compute_prompt_logprobs(inputs, hidden)
        self._batch.num_computed_tokens[inputs.rows] += inputs.num_scheduled
        logits = None
        if len(inputs.sampling_requests):
            with self._track.span("logits"):
                logits = self._model.compute_logits(hidden[torch.from_numpy(inputs.logits_indices)])
        self._parked = _ParkedStep(inputs=inputs, logits=logits, prompt_logprobs=prompt_logprobs)

    @torch.inference_mode()
    def sample_tokens(self, masks: GrammarMasks | None = None) -> ModelRunnerOutput:
        """Sample the parked step, the requests of `masks` from what those allow.

        On ranks above 0 the result lacks log-probabilities and errors.
        """
        step, self._parked = self._parked, None
        if step is None:
            return ModelRunnerOutput()
        rows = step.inputs.rows[step.inputs.sampling_requests]
        if len(rows) == 0:
            return ModelRunnerOutput(prompt_logprobs=step.prompt_logprobs)
        sampled = None
        token_ids = torch.zeros(len(rows), dtype=torch.int64)
        if step.logits is not None:
            metadata = gather_metadata(self._batch, self._counts, rows)
            allowed = None if masks is None else self._unpack(masks, rows)
            sampled = sample(step.logits, metadata, allowed, self._model.kernels)
            token_ids = sampled.token_ids
        self._group.broadcast(token_ids)
        self._batch.append_sampled(rows, token_ids.numpy())
        self._counts.add_tokens(rows, token_ids)
        return self._build_output(rows, token_ids, sampled, step.prompt_logprobs)

    def _unpack(self, masks: GrammarMasks, rows: NDArray[np.int64]) -> AllowedTokens:
        index_of = {self._batch.request_ids[row]: index for index, row in enumerate(rows.tolist())}
        return unpack_masks([index_of[request_id] for request_id in masks.request_ids], masks.rows)

    def _update_batch(self, plan: SchedulerOutput) -> None:
        removed, added = self._batch.apply(plan)
        for row in removed:
            self._counts.remove_row(row)
        if self._group.rank > 0:
            return
        for request_id, token_ids in plan.forced_token_ids.items():
            self._counts.add_run(int(self._batch.rows_of([request_id])[0]), token_ids)
        for row in added:
            params = self._batch.sampling[row]
            if params is not None and params.has_penalty:
                prompt_end, end = self._batch.num_prompt_tokens[row], self._batch.num_tokens[row]
                tokens = self._batch.token_ids[row]
                self._counts.add_row(row, tokens[:prompt_end], tokens[prompt_end:end])

    def _compute_prompt_logprobs(self, inputs: ModelInputs, hidden: torch.Tensor) -> dict[str, list[TokenLogprobs]]:
        """Log-probabilities of the prompt tokens that this step's positions predict, for the requests that asked."""
        results: dict[str, list[TokenLogprobs]] = {}
        is_in_prompt = self._batch.num_computed_tokens[inputs.rows] < self._batch.num_prompt_tokens[inputs.rows] - 1
        for index in np.flatnonzero(is_in_prompt).tolist():
            row = int(inputs.rows[index])
            params = self._batch.sampling[row]
            if params is None or params.prompt_logprobs is None:
                continue
            start = int(self._batch.num_computed_tokens[row])
            # A position predicts the next token; the last prompt position predicts the first output.
            end = min(start + int(inputs.num_scheduled[index]), int(self._batch.num_prompt_tokens[row]) - 1)
            if end <= start:
                continue
            flat = int(inputs.query_start[index])
            targets = torch.from_numpy(self._batch.token_ids[row, start + 1 : end + 1].astype(np.int64))
            results[self._batch.request_ids[row]] = self._score(
                hidden[flat : flat + end - start], targets, params.prompt_logprobs
            )
        return results

    def _score(self, hidden: torch.Tensor, targets: torch.Tensor, num_alternatives: int) -> list[TokenLogprobs]:
        """Log-probabilities of targets [P] after hidden [P, H], a few rows at a time."""
        entries: list[TokenLogprobs] = []
        for start in range(0, len(targets), _PROMPT_LOGITS_ROWS):
            piece = targets[start : start + _PROMPT_LOGITS_ROWS]
            logits = self._model.compute_logits(hidden[start : start + _PROMPT_LOGITS_ROWS])
            if logits is not None:
                entries += top_logprobs(logits.float(), piece, [num_alternatives] * len(piece))
        return entries

    def _build_output(
        self,
        rows: NDArray[np.int64],
        token_ids: torch.Tensor,
        sampled: SamplerOutput | None,
        prompt_logprobs: dict[str, list[TokenLogprobs]],
    ) -> ModelRunnerOutput:
        request_ids = [self._batch.request_ids[row] for row in rows.tolist()]
        logprobs: dict[str, list[TokenLogprobs]] = {}
        errors: dict[str, str] = {}
        if sampled is not None:
            logprobs = {request_ids[index]: [entry] for index, entry in sampled.logprobs.items()}
            if not bool(sampled.is_finite.all()):
                broken = torch.nonzero(~sampled.is_finite).flatten().tolist()
                errors = {request_ids[index]: "the model produced logits that are not finite" for index in broken}
            for index in sampled.without_choice:
                errors.setdefault(request_ids[index], _NOTHING_ALLOWED)
        return ModelRunnerOutput(
            request_ids=request_ids,
            sampled_token_ids=token_ids.unsqueeze(-1).tolist(),
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            errors=errors,
        )

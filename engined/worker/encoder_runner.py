"""Runs one step of an encoder on one rank: whole sequences in, their embeddings or scores out.

A sequence enters and leaves with the same step, so nothing is kept from one step to the next.
"""

from collections.abc import Sequence

import numpy as np
import torch

from engined.models.bert import BertModel, EncoderInputs
from engined.protocol.plan import ModelRunnerOutput, NewRequestData, SchedulerOutput
from engined.protocol.pooling import PoolingParams
from engined.trace.tracer import NO_TRACK, Track
from engined.worker.pooler import finish_embeddings, finish_scores, pool_states, to_output


class EncoderRunner:
    """Drives one model, which is handed in."""

    def __init__(self, model: BertModel, track: Track = NO_TRACK) -> None:
        self._model = model
        self._track = track

    @torch.inference_mode()
    def execute_model(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Run the forward over all sequences of the plan, and pool each."""
        requests = plan.new_requests
        if not requests:
            return ModelRunnerOutput()
        info = self._model.info
        assert info.encoder is not None and info.pooling_type is not None
        with self._track.span("build inputs"):
            inputs = _build_inputs(requests, has_segments=info.encoder.type_vocab_size > 1)
        assert sum(inputs.lengths) == plan.num_tokens, "an encoder takes sequences whole"
        with self._track.span("forward"):
            hidden = self._model(inputs)
        states = pool_states(hidden, inputs.lengths, info.pooling_type)
        params = [_params(new) for new in requests]
        if info.num_labels:
            vectors = finish_scores(self._model.score(states.to(hidden.dtype)), params, info)
        else:
            vectors = finish_embeddings(states, params, info)
        return to_output([new.request_id for new in requests], vectors)


def _build_inputs(requests: list[NewRequestData], *, has_segments: bool) -> EncoderInputs:
    lengths = [len(new.token_ids) for new in requests]
    segments = [_params(new).token_type_ids if has_segments else None for new in requests]
    token_types = [given or [0] * length for given, length in zip(segments, lengths, strict=True)]
    return EncoderInputs(
        input_ids=_flat([new.token_ids for new in requests]),
        positions=_flat([range(length) for length in lengths]),
        token_type_ids=_flat(token_types),
        lengths=lengths,
    )


def _flat(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate([np.array(row, dtype=np.int64) for row in rows]))


def _params(new: NewRequestData) -> PoolingParams:
    assert new.pooling is not None, f"request {new.request_id} asks an encoder for tokens"
    return new.pooling

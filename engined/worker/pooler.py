"""From the hidden states of sequences to embeddings or scores. Used by the runners of pooling models, on every rank."""

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from engined.checkpoint.model_info import ModelInfo, PoolingType
from engined.protocol.plan import ModelRunnerOutput
from engined.protocol.pooling import PoolingParams


def pool_states(hidden: Tensor, lengths: Sequence[int], pooling_type: PoolingType) -> Tensor:
    """One state for each sequence: the mean, the first or the last of its states.

    hidden [num_tokens, hidden_size] holds whole sequences of `lengths` tokens -> float32 [num_sequences, hidden_size]
    """
    sequences = torch.split(hidden.float(), list(lengths))
    match pooling_type:
        case "mean":
            return torch.stack([states.mean(dim=0) for states in sequences])
        case "cls":
            return torch.stack([states[0] for states in sequences])
        case "last":
            return torch.stack([states[-1] for states in sequences])


def finish_embeddings(states: Tensor, params: Sequence[PoolingParams], info: ModelInfo) -> list[Tensor]:
    """Pooled states, float32 [rows, hidden_size], each as its request wants it: shortened first, then scaled."""
    shortened = [state[: wish.dimensions] for state, wish in zip(states, params, strict=True)]
    if not info.normalizes_embeddings:
        return shortened
    pairs = zip(shortened, params, strict=True)
    return [F.normalize(state, dim=0) if wish.normalize else state for state, wish in pairs]


def finish_scores(scores: Tensor, params: Sequence[PoolingParams], info: ModelInfo) -> list[Tensor]:
    """Raw scores [rows, num_labels], each through the model's activation if its request wants it."""
    assert info.encoder is not None
    scores = scores.float()
    activated = torch.sigmoid(scores) if info.encoder.score_activation == "sigmoid" else scores
    return [activated[row] if wish.normalize else scores[row] for row, wish in enumerate(params)]


def to_output(request_ids: Sequence[str], vectors: Iterable[Tensor]) -> ModelRunnerOutput:
    """The result of a step. A vector that is not finite becomes the error of its request."""
    output = ModelRunnerOutput()
    for request_id, vector in zip(request_ids, vectors, strict=True):
        if bool(torch.isfinite(vector).all()):
            output.pooled[request_id] = vector.tolist()
        else:
            output.errors[request_id] = "the model produced a result that is not finite"
    return output

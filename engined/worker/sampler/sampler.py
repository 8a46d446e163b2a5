"""One sampling call for the whole batch, in the order that `SamplingParams` states. Runs on rank 0 only."""

from dataclasses import dataclass

import torch

from engined.kernels.cpu.library import CpuKernels
from engined.protocol.engine import TokenLogprobs
from engined.protocol.sampling import SamplingParams
from engined.worker.sampler.grammar_mask import AllowedTokens, apply_grammar_masks
from engined.worker.sampler.logprobs import top_logprobs
from engined.worker.sampler.masks import apply_masks_and_bias
from engined.worker.sampler.metadata import SamplingMetadata
from engined.worker.sampler.penalties import apply_penalties
from engined.worker.sampler.random import uniform
from engined.worker.sampler.truncation import apply_min_p, apply_top_k_top_p


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerOutput:
    """The result for S rows."""

    token_ids: torch.Tensor
    """[S] int64"""
    logprobs: dict[int, TokenLogprobs]
    """By row, for the rows that asked."""
    is_finite: torch.Tensor
    """[S] bool: False where the model produced NaN or infinity, and the token means nothing."""
    without_choice: list[int]
    """Rows with a grammar to which the request's other constraints left nothing; their tokens mean nothing."""


def sample(
    logits: torch.Tensor,
    metadata: SamplingMetadata,
    allowed: AllowedTokens | None = None,
    kernels: CpuKernels | None = None,
) -> SamplerOutput:
    """Draw one token for each row of logits [S, V] float32, which are changed in place.

    Log-probabilities are those of the model, over what the grammar allows.
    """
    is_finite = torch.isfinite(logits.amax(dim=-1))
    if allowed is not None:
        apply_grammar_masks(logits, allowed)
    asking = [row for row, params in enumerate(metadata.params) if params.logprobs is not None]
    raw = logits[asking] if asking else None
    apply_constraints(logits, metadata)
    without_choice = [] if allowed is None else _rows_without_choice(logits, allowed.rows)
    token_ids = _draw(logits, metadata, kernels)
    logprobs = {}
    if raw is not None:
        counts = [metadata.params[row].logprobs or 0 for row in asking]
        logprobs = dict(zip(asking, top_logprobs(raw, token_ids[asking], counts), strict=True))
    return SamplerOutput(token_ids=token_ids, logprobs=logprobs, is_finite=is_finite, without_choice=without_choice)


def _rows_without_choice(logits: torch.Tensor, rows: list[int]) -> list[int]:
    best = logits[rows].amax(dim=-1).tolist()
    return [row for row, logit in zip(rows, best, strict=True) if logit == float("-inf")]


def apply_constraints(logits: torch.Tensor, metadata: SamplingMetadata) -> None:
    """Masks, bias and penalties, in place on logits [S, V]; only rows that have any are touched."""
    apply_masks_and_bias(logits, metadata.params, metadata.outputs)
    penalties = metadata.penalties
    if penalties is not None:
        params = [metadata.params[row] for row in penalties.rows]
        logits[penalties.rows] = apply_penalties(
            logits[penalties.rows], params, penalties.in_prompt, penalties.in_output
        )


def scale_and_truncate(logits: torch.Tensor, temperature: torch.Tensor, params: list[SamplingParams]) -> torch.Tensor:
    """Temperature, min_p, then top_k and top_p on rows [S, V] that draw; only rows that use a cut pay for its sort."""
    logits = logits / temperature.unsqueeze(-1)
    min_p = [p.min_p for p in params]
    if any(min_p):
        logits = apply_min_p(logits, torch.tensor(min_p))
    cut = [row for row, p in enumerate(params) if p.top_k > 0 or p.top_p < 1.0]
    if cut:
        top_k = torch.tensor([params[row].top_k for row in cut])
        top_p = torch.tensor([params[row].top_p for row in cut])
        logits[cut] = apply_top_k_top_p(logits[cut], top_k, top_p)
    return logits


def _draw(logits: torch.Tensor, metadata: SamplingMetadata, kernels: CpuKernels | None) -> torch.Tensor:
    """Argmax for greedy rows, one draw for the others; logits [S, V] may be changed. Returns [S] int64."""
    draws = torch.from_numpy(uniform(metadata.seeds, metadata.num_output_tokens))
    temperature = metadata.temperature.clone()
    cut = [row for row, params in enumerate(metadata.params) if params.temperature > 0 and _cuts(params)]
    if cut:
        params = [metadata.params[row] for row in cut]
        logits[cut] = scale_and_truncate(logits[cut], temperature[cut], params)
        temperature[cut] = 1.0
    if kernels is not None:
        return kernels.sample(logits, temperature, draws)
    token_ids = logits.argmax(dim=-1)
    random_rows = torch.nonzero(temperature > 0).flatten()
    if len(random_rows):
        scaled = logits[random_rows] / temperature[random_rows].unsqueeze(-1)
        token_ids[random_rows] = _inverse_cdf(scaled, draws[random_rows])
    return token_ids


def _cuts(params: SamplingParams) -> bool:
    return params.min_p > 0 or params.top_k > 0 or params.top_p < 1.0


def _inverse_cdf(logits: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """The token where the cumulated probability of a row passes its draw in [0, 1). logits [S, V], draws [S] float64.

    One uniform number a row is all the randomness needed, so a request's stream costs nothing and depends on nobody.
    """
    cumulated = logits.softmax(dim=-1).to(torch.float64).cumsum(dim=-1)
    total = cumulated[:, -1]
    # Strictly below the total, so that rounding cannot push a draw past the last token that has probability.
    targets = torch.minimum(draws * total, torch.nextafter(total, torch.zeros_like(total)))
    # right=True skips tokens of probability zero, whose cumulated value equals that of the token before.
    token_ids = torch.searchsorted(cumulated, targets.unsqueeze(-1), right=True).squeeze(-1)
    return token_ids.clamp_(max=logits.shape[-1] - 1)  # only a row of NaN gets that far

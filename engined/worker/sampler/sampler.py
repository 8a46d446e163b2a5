"""One sampling call for the whole batch, in the order that `SamplingParams` states. Runs on rank 0 only."""

from dataclasses import dataclass

import torch

from engined.kernels.cpu.library import CpuKernels
from engined.protocol.engine import TokenLogprobs
from engined.protocol.sampling import SamplingParams
from engined.worker.sampler.grammar_mask import AllowedTokens, apply_grammar_masks
from engined.worker.sampler.logprobs import top_logprobs
from engined.worker.sampler.masks import apply_masks_and_bias
from engined.worker.sampler.metadata import SamplingDetails, SamplingMetadata
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
    """Draw one token for each row of logits [S, V], of the model's type; they may be changed in place.

    Log-probabilities are those of the model, over what the grammar allows.
    """
    draws = torch.from_numpy(uniform(metadata.seeds, metadata.num_output_tokens))
    details = metadata.details
    if kernels is not None and details is None and allowed is None:
        token_ids, is_finite = kernels.sample(logits, metadata.temperature, draws)
        return SamplerOutput(token_ids=token_ids, logprobs={}, is_finite=is_finite, without_choice=[])
    logits = logits.float()
    is_finite = torch.isfinite(logits.amax(dim=-1))
    if allowed is not None:
        apply_grammar_masks(logits, allowed)
    params = [] if details is None else details.params
    asking = [row for row, row_params in enumerate(params) if row_params.logprobs is not None]
    raw = logits[asking] if asking else None
    if details is not None:
        apply_constraints(logits, details)
    without_choice = [] if allowed is None else _rows_without_choice(logits, allowed.rows)
    token_ids = _draw(logits, metadata.temperature, params, draws, kernels)
    logprobs = {}
    if raw is not None:
        counts = [params[row].logprobs or 0 for row in asking]
        logprobs = dict(zip(asking, top_logprobs(raw, token_ids[asking], counts), strict=True))
    return SamplerOutput(token_ids=token_ids, logprobs=logprobs, is_finite=is_finite, without_choice=without_choice)


def _rows_without_choice(logits: torch.Tensor, rows: list[int]) -> list[int]:
    best = logits[rows].amax(dim=-1).tolist()
    return [row for row, logit in zip(rows, best, strict=True) if logit == float("-inf")]


def apply_constraints(logits: torch.Tensor, details: SamplingDetails) -> None:
    """Masks, bias and penalties, in place on logits [S, V] float32; only rows that have any are touched."""
    apply_masks_and_bias(logits, details.params, details.outputs)
    penalties = details.penalties
    if penalties is not None:
        params = [details.params[row] for row in penalties.rows]
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


def _draw(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    params: list[SamplingParams],
    draws: torch.Tensor,
    kernels: CpuKernels | None,
) -> torch.Tensor:
    """Argmax for greedy rows, one draw for the others; logits [S, V] float32 may be changed. Returns [S] int64.

    `params` is empty if all rows are plain.
    """
    cut = [row for row, row_params in enumerate(params) if row_params.cuts]
    if cut:
        logits[cut] = scale_and_truncate(logits[cut], temperature[cut], [params[row] for row in cut])
        temperature = temperature.clone()
        temperature[cut] = 1.0
    if kernels is not None:
        return kernels.sample(logits, temperature, draws)[0]
    token_ids = logits.argmax(dim=-1)
    random_rows = torch.nonzero(temperature > 0).flatten()
    if len(random_rows):
        scaled = logits[random_rows] / temperature[random_rows].unsqueeze(-1)
        token_ids[random_rows] = _inverse_cdf(scaled, draws[random_rows])
    return token_ids


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

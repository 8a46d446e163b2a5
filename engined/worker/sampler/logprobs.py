"""Log-probabilities of chosen tokens and of the best alternatives, from raw logits."""

import torch

from engined.protocol.engine import TokenLogprobs

# JSON has no infinity; OpenAI and vLLM use this value.
_LOWEST = -9999.0


def top_logprobs(logits: torch.Tensor, chosen: torch.Tensor, num_alternatives: list[int]) -> list[TokenLogprobs]:
    """For each row: the chosen token, then its best alternatives.

    logits [S, V] float32 before penalties and temperature; chosen [S] int64; num_alternatives [S], 0 for the chosen
    token alone. The chosen token's value is the identical float wherever it appears.
    """
    logprobs = logits.log_softmax(dim=-1).clamp_(min=_LOWEST)
    chosen_logprobs = logprobs.gather(-1, chosen.unsqueeze(-1))
    ranks = (logprobs > chosen_logprobs).sum(dim=-1) + 1
    best_values, best_ids = logprobs.topk(max(num_alternatives), dim=-1)
    entries = []
    for row, count in enumerate(num_alternatives):
        entries.append(
            TokenLogprobs(
                token_ids=[int(chosen[row]), *best_ids[row, :count].tolist()],
                logprobs=[chosen_logprobs[row].item(), *best_values[row, :count].tolist()],
                rank=int(ranks[row]),
            )
        )
    return entries

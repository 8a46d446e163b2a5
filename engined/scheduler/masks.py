"""What constrained requests may sample in a step, from their grammars. Pure; called by the scheduler."""

import numpy as np
from numpy.typing import NDArray

from engined.grammar.matcher import GrammarMatcher
from engined.scheduler.request import Request


def fill_mask(request: Request, matcher: GrammarMatcher, row: NDArray[np.uint8]) -> None:
    """Write the mask of one request into row [num_mask_bytes]. Raises GrammarError.

    The grammar knows of EOS. Other stop tokens join it where the sequence may end; `ignore_eos` takes EOS away, unless
    nothing else is left.
    """
    matcher.fill_mask(row)
    sampling = request.sampling
    if sampling.stop_token_ids and matcher.is_accepting():
        for token_id in sampling.stop_token_ids:
            row[token_id // 8] |= 1 << token_id % 8
    if sampling.ignore_eos:
        with_eos = row.copy()
        for token_id in set(sampling.eos_token_ids) - request.stop_token_ids:
            row[token_id // 8] &= ~(1 << token_id % 8) & 0xFF
        if not row.any():
            row[:] = with_eos

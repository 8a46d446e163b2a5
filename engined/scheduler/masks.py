"""What constrained requests may sample in a step, from their grammars. Pure; called by the scheduler."""

import logging

import numpy as np
from numpy.typing import NDArray

from engined import faults
from engined.errors import GrammarError
from engined.grammar.matcher import GrammarMatcher
from engined.protocol.plan import GrammarMasks
from engined.scheduler.request import Request

logger = logging.getLogger(__name__)


def build_masks(requests: list[Request]) -> tuple[GrammarMasks, dict[str, str]]:
    """The masks of requests with a grammar, at least one, and the causes of those whose grammar cannot say it, by
    request id."""
    matchers = [_matcher(request) for request in requests]
    rows = np.full((len(requests), max(matcher.num_mask_bytes for matcher in matchers)), 0xFF, np.uint8)
    causes: dict[str, str] = {}
    for request, matcher, row in zip(requests, matchers, rows, strict=True):
        try:
            fill_mask(request, matcher, row)
        except GrammarError as error:
            causes[request.request_id] = str(error)
        except Exception as error:  # the boundary of this request: its neighbours are in the same step
            logger.exception("request %s: its grammar gives no mask", request.request_id)
            causes[request.request_id] = f"internal error: {error}"
    request_ids = [request.request_id for request in requests]
    return GrammarMasks(request_ids=request_ids, rows=rows.data.cast("B")), causes


def fill_mask(request: Request, matcher: GrammarMatcher, row: NDArray[np.uint8]) -> None:
    """Write the mask of one request into row [num_mask_bytes]. Raises GrammarError.

    The grammar knows of EOS. Other stop tokens join it where the sequence may end; `ignore_eos` takes EOS away, unless
    nothing else is left.
    """
    faults.point("request.mask")
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


def _matcher(request: Request) -> GrammarMatcher:
    assert request.matcher is not None, f"request {request.request_id} has no grammar"
    return request.matcher

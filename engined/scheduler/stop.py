"""When a sequence ends by itself. (Stop strings need text: the frontend finds them and sends an abort.)"""

from engined.grammar.matcher import GrammarMatcher
from engined.protocol.engine import Finished, FinishReason
from engined.scheduler.request import Request


def check_stop(request: Request) -> Finished | None:
    """Decide whether the token that was just appended to `request.token_ids` ends the sequence.

    A stop token counts only if `min_tokens` tokens were generated before it, which is how the sampler masks it too.
    EOS goes before an equal stop token id, and both go before the length.
    """
    num_tokens = len(request.token_ids)
    token_id = request.token_ids[-1]
    if token_id in request.stop_token_ids and num_tokens > request.min_num_tokens:
        sampling = request.sampling
        is_eos = token_id in sampling.eos_token_ids and not sampling.ignore_eos
        return Finished(
            reason=FinishReason.STOP,
            stop_token_id=None if is_eos else token_id,
            num_preemptions=request.num_preemptions,
        )
    if num_tokens >= request.max_num_tokens:
        return Finished(reason=FinishReason.LENGTH, num_preemptions=request.num_preemptions)
    return None


def check_constrained_stop(request: Request, matcher: GrammarMatcher) -> Finished | None:
    """The same for a request with a grammar, which takes the token in. Raises GrammarError if that is not possible.

    A stop token counts only where the grammar lets the sequence end, so that "stop" always means a whole document; for
    the same reason EOS ends it there even with `ignore_eos`. A finished grammar goes before `min_tokens`.
    """
    num_tokens = len(request.token_ids)
    token_id = request.token_ids[-1]
    sampling, num_preemptions = request.sampling, request.num_preemptions
    is_eos = token_id in sampling.eos_token_ids
    is_end = (is_eos and matcher.constrains_end) or token_id in request.stop_token_ids
    if is_end and num_tokens > request.min_num_tokens and matcher.is_accepting():
        stop_token_id = None if is_eos else token_id
        return Finished(reason=FinishReason.STOP, stop_token_id=stop_token_id, num_preemptions=num_preemptions)
    matcher.accept_token(token_id)
    if matcher.is_finished():
        return Finished(reason=FinishReason.STOP, is_grammar_complete=True, num_preemptions=num_preemptions)
    if num_tokens >= request.max_num_tokens:
        return Finished(reason=FinishReason.LENGTH, num_preemptions=num_preemptions)
    return None

"""When a sequence ends by itself. (Stop strings need text: the frontend finds them and sends an abort.)"""

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

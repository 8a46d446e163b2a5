"""What each request must produce: a toy model run on one request alone, without batching, cache or scheduler."""

from dataclasses import dataclass
from zlib import crc32

from engined.protocol.engine import EngineCoreRequest, FinishReason
from engined.protocol.sampling import SamplingParams
from tests.scheduler import toy_grammar
from tests.scheduler.toy_grammar import VOCAB_SIZE


@dataclass(frozen=True)
class Expected:
    """Output of a request that nobody aborts."""

    token_ids: list[int]
    reason: FinishReason
    stop_token_id: int | None


def next_token(
    token_ids: list[int], num_prompt_tokens: int, sampling: SamplingParams, allowed: set[int] | None = None
) -> int:
    """The token after `token_ids`: a function of the whole sequence and the seed; stop tokens are masked at first.

    `allowed` are those that a grammar allows.
    """
    possible = set(range(VOCAB_SIZE)) if allowed is None else allowed
    if len(token_ids) - num_prompt_tokens < sampling.min_tokens:
        possible = possible - sampling.all_stop_token_ids
    token_id = crc32(bytes(token_ids), sampling.seed) % VOCAB_SIZE
    while token_id not in possible:
        token_id = (token_id + 1) % VOCAB_SIZE
    return token_id


def run_alone(request: EngineCoreRequest, max_sequence_len: int) -> Expected:
    """Generate until a stop token, max_tokens or the longest possible sequence."""
    sampling = request.sampling
    token_ids = list(request.prompt_token_ids)
    num_prompt_tokens = len(token_ids)
    while len(token_ids) < min(num_prompt_tokens + sampling.max_tokens, max_sequence_len):
        output = token_ids[num_prompt_tokens:]
        may_end, allowed = True, None
        if request.grammar is not None:
            may_end = len(output) >= sampling.min_tokens and toy_grammar.is_accepting(output)
            allowed = allowed_tokens(output, sampling)
        token_id = next_token(token_ids, num_prompt_tokens, sampling, allowed)
        token_ids.append(token_id)
        is_eos = token_id in sampling.eos_token_ids and (request.grammar is not None or not sampling.ignore_eos)
        if may_end and (is_eos or token_id in sampling.stop_token_ids):
            return Expected(token_ids[num_prompt_tokens:], FinishReason.STOP, None if is_eos else token_id)
        if request.grammar is not None and toy_grammar.is_finished(token_ids[num_prompt_tokens:]):
            return Expected(token_ids[num_prompt_tokens:], FinishReason.STOP, None)
    return Expected(token_ids[num_prompt_tokens:], FinishReason.LENGTH, None)


def allowed_tokens(output: list[int], sampling: SamplingParams) -> set[int]:
    """What the toy grammar allows a request after its output: stop tokens too, where it may end."""
    ends = sampling.all_stop_token_ids if toy_grammar.is_accepting(output) else frozenset()
    return toy_grammar.allowed_tokens(output) | ends

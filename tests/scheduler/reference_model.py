"""What each request must produce: a toy model run on one request alone, without batching, cache or scheduler."""

from dataclasses import dataclass
from zlib import crc32

from engined.protocol.engine import EngineCoreRequest, FinishReason
from engined.protocol.sampling import SamplingParams

VOCAB_SIZE = 12


@dataclass(frozen=True)
class Expected:
    """Output of a request that nobody aborts."""

    token_ids: list[int]
    reason: FinishReason
    stop_token_id: int | None


def next_token(token_ids: list[int], num_prompt_tokens: int, sampling: SamplingParams) -> int:
    """The token after `token_ids`: a function of the whole sequence and the seed; stop tokens are masked at first."""
    token_id = crc32(bytes(token_ids), sampling.seed) % VOCAB_SIZE
    is_masked = len(token_ids) - num_prompt_tokens < sampling.min_tokens
    while is_masked and token_id in sampling.all_stop_token_ids:
        token_id = (token_id + 1) % VOCAB_SIZE
    return token_id


def run_alone(request: EngineCoreRequest, max_sequence_len: int) -> Expected:
    """Generate until a stop token, max_tokens or the longest possible sequence."""
    sampling = request.sampling
    token_ids = list(request.prompt_token_ids)
    num_prompt_tokens = len(token_ids)
    while len(token_ids) < min(num_prompt_tokens + sampling.max_tokens, max_sequence_len):
        token_id = next_token(token_ids, num_prompt_tokens, sampling)
        token_ids.append(token_id)
        is_eos = token_id in sampling.eos_token_ids and not sampling.ignore_eos
        if is_eos or token_id in sampling.stop_token_ids:
            return Expected(token_ids[num_prompt_tokens:], FinishReason.STOP, None if is_eos else token_id)
    return Expected(token_ids[num_prompt_tokens:], FinishReason.LENGTH, None)

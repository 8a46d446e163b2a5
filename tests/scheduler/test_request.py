"""What a request is made of."""

from typing import Any

from engined.cache.block_hash import BlockHasher
from engined.protocol.engine import EngineCoreRequest
from engined.protocol.sampling import SamplingParams
from engined.scheduler.request import Request, RequestStatus

PROMPT = [1, 2, 3, 4, 5]


def make(salt: str | None = None, hasher: BlockHasher | None = None, **sampling: Any) -> Request:
    message = EngineCoreRequest(
        request_id="r",
        prompt_token_ids=PROMPT,
        sampling=SamplingParams(**{"max_tokens": 10, **sampling}),
        arrival_time=1.5,
        priority=3,
        cache_salt=salt,
    )
    return Request(message, 7, hasher)


def test_a_new_request_has_computed_nothing() -> None:
    request = make(min_tokens=2)
    assert (request.request_id, request.client_index, request.arrival_time, request.priority) == ("r", 7, 1.5, 3)
    assert (request.num_prompt_tokens, request.num_computed_tokens) == (5, 0)
    assert (request.min_num_tokens, request.max_num_tokens) == (7, 15)
    assert request.status is RequestStatus.WAITING and request.block_table is None


def test_its_tokens_are_its_own() -> None:
    request = make()
    request.token_ids.append(6)
    assert PROMPT == [1, 2, 3, 4, 5]


def test_full_blocks_of_the_prompt_are_hashed_when_it_is_made() -> None:
    hasher = BlockHasher(2, b"s")
    chain = make(hasher=hasher).block_hashes
    salted = make(salt="a", hasher=hasher).block_hashes
    assert chain is not None and salted is not None
    assert len(chain.hashes) == 2 and chain.hashes != salted.hashes
    assert make().block_hashes is None


def test_prompt_logprobs_read_no_prefix_cache() -> None:
    assert make().reads_prefix_cache
    assert not make(prompt_logprobs=0).reads_prefix_cache

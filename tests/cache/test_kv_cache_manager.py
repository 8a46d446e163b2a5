"""Block tables: all or nothing, the longest usable prefix, and content that leaves the cache when it must."""

from engined.cache.block_hash import BlockHashChain
from engined.cache.kv_cache_manager import BlockTable, KVCacheManager

BLOCK_SIZE = 4


class FakeRequest:
    """The least that the cache needs of a request."""

    def __init__(
        self, cache: KVCacheManager, token_ids: list[int], salt: str | None = None, reads_prefix_cache: bool = True
    ) -> None:
        self.request_id = f"request {id(self)}"
        self.token_ids = token_ids
        self.num_computed_tokens = 0
        self.reads_prefix_cache = reads_prefix_cache
        self.block_table: BlockTable | None = None
        self.block_hashes: BlockHashChain | None = None
        if cache.hasher is not None:
            self.block_hashes = cache.hasher.chain((salt,))
            self.block_hashes.extend(token_ids)


def make_cache(num_blocks: int = 8, enable_prefix_caching: bool = True) -> KVCacheManager:
    return KVCacheManager(num_blocks, BLOCK_SIZE, enable_prefix_caching, b"secret")


def compute_all(cache: KVCacheManager, request: FakeRequest) -> None:
    request.num_computed_tokens = len(request.token_ids)
    cache.publish_blocks(request, request.num_computed_tokens)


def run_and_free(cache: KVCacheManager, token_ids: list[int], salt: str | None = None) -> list[int]:
    request = FakeRequest(cache, token_ids, salt)
    assert cache.allocate_sequence(request) is not None
    compute_all(cache, request)
    block_ids = cache.block_ids(request)
    cache.free(request)
    return block_ids


def num_hit(cache: KVCacheManager, request: FakeRequest) -> int | None:
    result = cache.allocate_sequence(request)
    if result is not None:
        cache.free(request)
    return result


def test_a_sequence_gets_blocks_for_all_its_tokens_or_none() -> None:
    cache = make_cache(num_blocks=4)
    first, second = FakeRequest(cache, [1] * 9), FakeRequest(cache, [2] * 5)
    assert cache.allocate_sequence(first) == 0 and len(cache.block_ids(first)) == 3
    assert cache.allocate_sequence(second) is None and second.block_table is None
    assert cache.usage == 0.75
    cache.free(first)
    assert cache.usage == 0.0 and cache.allocate_sequence(second) == 0


def test_spare_blocks_must_be_left_over() -> None:
    cache = make_cache(num_blocks=4)
    assert cache.allocate_sequence(FakeRequest(cache, [1] * 8), num_spare_blocks=3) is None
    assert cache.allocate_sequence(FakeRequest(cache, [1] * 8), num_spare_blocks=2) == 0


def test_a_cached_block_that_is_free_counts_as_taken_when_it_is_shared() -> None:
    cache = make_cache(num_blocks=3)
    run_and_free(cache, [1] * 8)
    assert cache.allocate_sequence(FakeRequest(cache, [1] * 9), num_spare_blocks=1) is None
    assert cache.usage == 0.0
    assert cache.allocate_sequence(FakeRequest(cache, [1] * 9)) == 8
    assert cache.usage == 1.0


def test_slots_grow_a_block_at_a_time() -> None:
    cache = make_cache(num_blocks=3)
    request, other = FakeRequest(cache, [1] * 4), FakeRequest(cache, [2])
    cache.allocate_sequence(request)
    cache.allocate_sequence(other)
    request.num_computed_tokens = 4
    added = cache.allocate_slots(request, 1)
    assert added is not None and len(added) == 1
    assert cache.block_ids(request)[1:] == added
    assert cache.allocate_slots(request, 4) == []
    request.num_computed_tokens = 8
    assert cache.allocate_slots(request, 1) is None
    assert len(cache.block_ids(request)) == 2
    cache.free(other)
    assert cache.allocate_slots(request, 1) is not None


def test_the_longest_cached_prefix_is_found_but_never_the_whole_sequence() -> None:
    cache = make_cache()
    run_and_free(cache, list(range(12)))
    hits = {length: num_hit(cache, FakeRequest(cache, list(range(length)))) for length in (3, 4, 5, 8, 9, 12, 13)}
    assert hits == {3: 0, 4: 0, 5: 4, 8: 4, 9: 8, 12: 8, 13: 12}
    assert num_hit(cache, FakeRequest(cache, [0, 1, 2, 3, 4, 5, 99, 7, 8])) == 4


def test_a_hit_uses_the_same_blocks() -> None:
    cache = make_cache()
    block_ids = run_and_free(cache, list(range(8)))
    request = FakeRequest(cache, [*range(8), 50])
    cache.allocate_sequence(request)
    assert cache.block_ids(request)[:2] == block_ids


def test_two_requests_in_flight_share_and_free_independently() -> None:
    cache = make_cache(num_blocks=4)
    first = FakeRequest(cache, list(range(8)))
    cache.allocate_sequence(first)
    compute_all(cache, first)
    second = FakeRequest(cache, [*range(8), 50])
    assert cache.allocate_sequence(second) == 8
    assert cache.usage == 0.75
    cache.free(first)
    assert cache.usage == 0.75
    cache.free(second)
    assert cache.usage == 0.0


def test_nothing_is_found_before_it_is_published() -> None:
    cache = make_cache()
    request = FakeRequest(cache, list(range(12)))
    cache.allocate_sequence(request)
    assert num_hit(cache, FakeRequest(cache, list(range(12)))) == 0
    cache.publish_blocks(request, 7)
    assert num_hit(cache, FakeRequest(cache, list(range(12)))) == 4


def test_output_is_cached_when_the_request_ends() -> None:
    cache = make_cache()
    request = FakeRequest(cache, list(range(4)))
    cache.allocate_sequence(request)
    cache.allocate_slots(request, 8)
    request.token_ids += range(4, 9)
    request.num_computed_tokens = 8
    cache.free(request)
    assert num_hit(cache, FakeRequest(cache, list(range(10)))) == 8


def test_salts_keep_requests_apart() -> None:
    cache = make_cache()
    run_and_free(cache, [1] * 8, salt="a")
    assert num_hit(cache, FakeRequest(cache, [1] * 9, salt="b")) == 0
    assert num_hit(cache, FakeRequest(cache, [1] * 9)) == 0
    assert num_hit(cache, FakeRequest(cache, [1] * 9, salt="a")) == 8


def test_a_request_that_needs_all_logits_fills_the_cache_but_reads_nothing() -> None:
    cache = make_cache()
    request = FakeRequest(cache, [1] * 8, reads_prefix_cache=False)
    assert cache.allocate_sequence(request) == 0
    compute_all(cache, request)
    cache.free(request)
    assert num_hit(cache, FakeRequest(cache, [1] * 9, reads_prefix_cache=False)) == 0
    assert num_hit(cache, FakeRequest(cache, [1] * 9)) == 8


def test_damaged_content_is_never_found_again() -> None:
    cache = make_cache()
    run_and_free(cache, [1] * 4)
    broken = FakeRequest(cache, [1] * 12)
    assert cache.allocate_sequence(broken) == 4
    compute_all(cache, broken)
    cache.free(broken, is_content_valid=False)
    assert num_hit(cache, FakeRequest(cache, [1] * 13)) == 0
    assert cache.usage == 0.0


def test_reset_forgets_what_nobody_holds() -> None:
    cache = make_cache()
    run_and_free(cache, [1] * 8)
    held = FakeRequest(cache, [2] * 8)
    cache.allocate_sequence(held)
    compute_all(cache, held)
    cache.reset_prefix_cache()
    assert num_hit(cache, FakeRequest(cache, [1] * 9)) == 0
    assert num_hit(cache, FakeRequest(cache, [2] * 9)) == 8


def test_the_end_of_a_prefix_is_evicted_before_its_beginning() -> None:
    cache = make_cache(num_blocks=4)
    run_and_free(cache, [1] * 16)
    run_and_free(cache, [2] * 8)
    assert num_hit(cache, FakeRequest(cache, [1] * 16)) == 8


def test_without_prefix_caching_nothing_is_hashed_or_found() -> None:
    cache = make_cache(enable_prefix_caching=False)
    assert cache.hasher is None
    run_and_free(cache, [1] * 8)
    assert num_hit(cache, FakeRequest(cache, [1] * 9)) == 0

"""Block hashes: equal exactly when everything that the block's content depends on is equal."""

import random

from engined.cache.block_hash import BlockHash, BlockHasher


def hashes(token_ids: list[int], *extra_keys: str | None, block_size: int = 4, secret: bytes = b"s") -> list[BlockHash]:
    chain = BlockHasher(block_size, secret).chain(extra_keys)
    chain.extend(token_ids)
    return chain.hashes


def test_only_full_blocks_have_a_hash() -> None:
    assert [len(hashes(list(range(length)), None)) for length in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]


def test_growing_token_by_token_equals_hashing_at_once() -> None:
    token_ids = random.Random(1).choices(range(2**31), k=23)
    chain = BlockHasher(4, b"s").chain((None,))
    for length in range(1, 24):
        chain.extend(token_ids[:length])
    assert chain.hashes == hashes(token_ids, None)


def test_a_hash_depends_on_every_token_before_it() -> None:
    original = hashes([1, 2, 3, 4, 5, 6, 7, 8], None)
    changed_first = hashes([9, 2, 3, 4, 5, 6, 7, 8], None)
    changed_last = hashes([1, 2, 3, 4, 5, 6, 7, 9], None)
    assert original[0] != changed_first[0] and original[1] != changed_first[1]
    assert original[0] == changed_last[0] and original[1] != changed_last[1]


def test_equal_tokens_at_another_place_differ() -> None:
    first, second = hashes([1, 2, 3, 4, 1, 2, 3, 4], None)
    assert first != second


def test_salt_and_secret_separate_whole_chains() -> None:
    chains = [
        hashes([1] * 12, None),
        hashes([1] * 12, ""),
        hashes([1] * 12, "-"),
        hashes([1] * 12, "a"),
        hashes([1] * 12, "a", None),
        hashes([1] * 12, "a", "b"),
        hashes([1] * 12, "a1:b"),
        hashes([1] * 12, None, secret=b"t"),
    ]
    assert len({block_hash for chain in chains for block_hash in chain}) == 3 * len(chains)


def test_a_salt_may_be_any_string_that_json_can_hold() -> None:
    assert hashes([1] * 4, "\ud800") != hashes([1] * 4, "\ud801")

"""The block pool against a plain model of it, and the order in which blocks are reused."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engined.cache.block_hash import BlockHash
from engined.cache.block_pool import BlockPool

A, B, C = (BlockHash(bytes([letter])) for letter in b"ABC")


def test_blocks_come_in_order_and_each_once() -> None:
    pool = BlockPool(4)
    assert pool.allocate(3) + pool.allocate(1) == [0, 1, 2, 3]
    assert pool.num_free == 0 and list(pool.free_block_ids()) == []


def test_the_least_recently_freed_cached_block_goes_first() -> None:
    pool = BlockPool(3)
    for block_id, block_hash in zip(pool.allocate(3), (A, B, C), strict=True):
        pool.publish(block_id, block_hash)
    pool.free([1])
    pool.free([2, 0])
    assert pool.allocate(1) == [1]
    assert (pool.find(A), pool.find(B), pool.find(C)) == (0, None, 2)
    assert pool.allocate(2) == [2, 0]


def test_a_block_without_content_to_share_is_reused_before_any_other() -> None:
    pool = BlockPool(4)
    cached, plain = pool.allocate(2)
    pool.publish(cached, A)
    pool.free([cached])
    pool.free([plain])
    assert pool.allocate(4) == [plain, 2, 3, cached]


def test_a_free_block_can_be_shared_again_out_of_the_middle() -> None:
    pool = BlockPool(3)
    for block_id, block_hash in zip(pool.allocate(3), (A, B, C), strict=True):
        pool.publish(block_id, block_hash)
    pool.free([0, 1, 2])
    pool.share([1])
    assert list(pool.free_block_ids()) == [0, 2] and pool.num_free == 2
    assert pool.find(B) == 1
    pool.share([1])
    pool.free([1])
    assert pool.reference_count(1) == 1 and pool.num_free == 2


def test_the_first_block_with_a_hash_stays() -> None:
    pool = BlockPool(2)
    pool.allocate(2)
    pool.publish(0, A)
    pool.publish(1, A)
    assert pool.find(A) == 0
    pool.forget(1)
    assert pool.find(A) == 0
    pool.forget(0)
    assert pool.find(A) is None
    pool.publish(1, A)
    assert pool.find(A) == 1


def test_forgetting_free_blocks_spares_those_in_use() -> None:
    pool = BlockPool(3)
    for block_id, block_hash in zip(pool.allocate(2), (A, B), strict=True):
        pool.publish(block_id, block_hash)
    pool.free([0])
    pool.forget_all_free()
    assert (pool.find(A), pool.find(B)) == (None, 1)


class PoolMachine(RuleBasedStateMachine):
    """Random use of a pool of 8 blocks; `holders` is what each simulated request holds."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(8)
        self.holders: list[list[int]] = []
        self.content: dict[int, BlockHash] = {}

    @rule(count=st.integers(0, 8))
    def allocate(self, count: int) -> None:
        if count <= self.pool.num_free:
            block_ids = self.pool.allocate(count)
            assert len(set(block_ids)) == count
            assert all(block_id not in holder for holder in self.holders for block_id in block_ids)
            for block_id in block_ids:
                self.content.pop(block_id, None)
            self.holders.append(block_ids)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.holders) - 1))
        self.pool.free(reversed(self.holders.pop(index)))

    @precondition(lambda self: self.content)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(sorted(self.content)))
        self.pool.share([block_id])
        self.holders.append([block_id])

    @precondition(lambda self: any(self.holders))
    @rule(data=st.data(), block_hash=st.sampled_from((A, B, C)))
    def publish(self, data: st.DataObject, block_hash: BlockHash) -> None:
        in_use = sorted({block_id for holder in self.holders for block_id in holder} - set(self.content))
        if in_use:
            block_id = data.draw(st.sampled_from(in_use))
            if block_hash not in self.content.values():
                self.content[block_id] = block_hash
            self.pool.publish(block_id, block_hash)

    @precondition(lambda self: self.content)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(sorted(self.content)))
        del self.content[block_id]
        self.pool.forget(block_id)

    @invariant()
    def agrees_with_the_model(self) -> None:
        held = [block_id for holder in self.holders for block_id in holder]
        free = list(self.pool.free_block_ids())
        assert sorted({*held, *free}) == list(range(8)) and not {*held} & {*free}
        assert len(free) == len(set(free)) == self.pool.num_free
        assert [self.pool.reference_count(block_id) for block_id in range(8)] == [held.count(b) for b in range(8)]
        expected = {block_hash: block_id for block_id, block_hash in self.content.items()}
        assert {h: self.pool.find(h) for h in (A, B, C)} == {h: expected.get(h) for h in (A, B, C)}


TestPoolMachine = PoolMachine.TestCase

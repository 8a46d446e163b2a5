"""The pool of KV blocks: reference counts, the free list, and the map from content hash to block.

Runs in the engine core. `KVCacheManager` is the only caller; blocks are integers from 0 to num_blocks - 1.
"""

from collections.abc import Iterable, Iterator

from engined import faults
from engined.cache.block_hash import BlockHash


class BlockPool:
    """Who may use which block.

    A block is free when nobody refers to it. A free block may keep its hash: its content can still be shared, until
    `allocate` takes it. The free list is a ring of links between block ids, so that a shared block leaves its middle
    in O(1); the id `num_blocks` is the ring's fixed point, not a block.

        fixed point -> next to be allocated -> ... -> freed last -> fixed point
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_free = num_blocks
        self._reference_counts = [0] * num_blocks
        self._next = [*range(1, num_blocks + 1), 0]
        self._previous = [num_blocks, *range(num_blocks)]
        self._hash_of_block: list[BlockHash | None] = [None] * num_blocks
        self._block_of_hash: dict[BlockHash, int] = {}

    def allocate(self, num_blocks: int) -> list[int]:
        """Take blocks from the head of the free list; what they held is forgotten. The caller checks `num_free`."""
        assert num_blocks <= self.num_free, "allocate called without a look at num_free"
        faults.point("alloc")
        block_ids = []
        for _ in range(num_blocks):
            block_id = self._next[self.num_blocks]
            self._unlink(block_id)
            self.forget(block_id)
            self._reference_counts[block_id] = 1
            block_ids.append(block_id)
        return block_ids

    def share(self, block_ids: Iterable[int]) -> None:
        """Add one reference to each block; free ones come back into use with their content."""
        for block_id in block_ids:
            if self._reference_counts[block_id] == 0:
                self._unlink(block_id)
            self._reference_counts[block_id] += 1

    def free(self, block_ids: Iterable[int]) -> None:
        """Drop one reference from each block, in the order in which they shall be reused.

        A block with a hash goes to the tail of the free list (least recently used first out). One without can never
        be shared: it goes to the head, so that memory which is already touched, and warm, is written again first.
        """
        for block_id in block_ids:
            self._reference_counts[block_id] -= 1
            assert self._reference_counts[block_id] >= 0, f"block {block_id} was freed twice"
            if self._reference_counts[block_id] == 0:
                fixed_point = self.num_blocks
                is_cached = self._hash_of_block[block_id] is not None
                self._link(block_id, before=fixed_point if is_cached else self._next[fixed_point])

    def publish(self, block_id: int, block_hash: BlockHash) -> None:
        """Publish the content of a block in use. If another block already stands for the hash, that one stays."""
        if block_hash not in self._block_of_hash:
            self._block_of_hash[block_hash] = block_id
            self._hash_of_block[block_id] = block_hash

    def find(self, block_hash: BlockHash) -> int | None:
        """The block with this content, in use or free."""
        return self._block_of_hash.get(block_hash)

    def forget(self, block_id: int) -> None:
        """Take a block out of the hash map, if it is there. Those who refer to it keep it."""
        block_hash = self._hash_of_block[block_id]
        if block_hash is not None:
            self._hash_of_block[block_id] = None
            del self._block_of_hash[block_hash]

    def forget_all_free(self) -> None:
        """Take every block that nobody refers to out of the hash map."""
        for block_id in self.free_block_ids():
            self.forget(block_id)

    def reference_count(self, block_id: int) -> int:
        """How many block tables hold the block."""
        return self._reference_counts[block_id]

    def free_block_ids(self) -> Iterator[int]:
        """Walk the free list, from the block that is allocated next."""
        block_id = self._next[self.num_blocks]
        while block_id != self.num_blocks:
            yield block_id
            block_id = self._next[block_id]

    def _link(self, block_id: int, before: int) -> None:
        after = self._previous[before]
        self._previous[block_id] = after
        self._next[block_id] = before
        self._next[after] = block_id
        self._previous[before] = block_id
        self.num_free += 1

    def _unlink(self, block_id: int) -> None:
        before, after = self._previous[block_id], self._next[block_id]
        self._next[before] = after
        self._previous[after] = before
        self.num_free -= 1

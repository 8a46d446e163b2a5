"""The block tables of all running requests. Runs in the engine core; the scheduler is the only caller.

Every block that a request holds was allocated here and is freed here, by `free`, once.
"""

from typing import Protocol

from engined.cache.block_hash import BlockHashChain, BlockHasher
from engined.cache.block_pool import BlockPool


class BlockTable:
    """The blocks of one request, in the order of its tokens. Changed by the KVCacheManager only."""

    __slots__ = ("block_ids", "num_published_tokens")

    def __init__(self, block_ids: list[int], num_published_tokens: int) -> None:
        self.block_ids = block_ids
        self.num_published_tokens = num_published_tokens
        """Tokens in blocks that are in the prefix cache, or equal to one that is."""


class CacheableRequest(Protocol):
    """What the cache reads of a request, and the last two, which it writes."""

    request_id: str
    token_ids: list[int]
    num_computed_tokens: int
    reads_prefix_cache: bool
    block_hashes: BlockHashChain | None
    """None when there is no prefix cache."""
    block_table: BlockTable | None
    """None while the request holds nothing."""
    num_slots: int
    """Tokens for which its blocks have room."""


class KVCacheManager:
    """Gives blocks to requests, all or nothing, and finds prefixes that are already computed."""

    can_resume = True
    """What a step computed, the next one finds."""

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool, hash_secret: bytes) -> None:
        self.block_size = block_size
        self.hasher = BlockHasher(block_size, hash_secret) if enable_prefix_caching else None
        """Hashes the prompts of new requests; None when prefix caching is off."""
        self._pool = BlockPool(num_blocks)
        self._damaged_block_ids: list[int] = []

    @property
    def num_token_slots(self) -> int:
        """Tokens that the whole cache holds."""
        return self._pool.num_blocks * self.block_size

    @property
    def usage(self) -> float:
        """Share of the blocks that requests hold, 0 to 1; cached blocks that nobody holds count as free."""
        return 1.0 - self._pool.num_free / self._pool.num_blocks

    def allocate_sequence(self, request: CacheableRequest, num_spare_blocks: int = 0) -> int | None:
        """Give a request that holds nothing the blocks of all its tokens so far, cached ones where they exist.

        Returns how many tokens those cached blocks hold: always less than all, because the last token must be
        computed for its logits. Returns None, with nothing changed, if `num_spare_blocks` would not be left over.
        """
        assert request.block_table is None, f"request {request.request_id} already holds blocks"
        pool = self._pool
        prefix = self._find_cached_prefix(request)
        num_new_blocks = self._num_blocks_for(len(request.token_ids)) - len(prefix)
        num_revived_blocks = sum(pool.reference_count(block_id) == 0 for block_id in prefix)
        if num_new_blocks + num_revived_blocks + num_spare_blocks > pool.num_free:
            return None
        pool.share(prefix)  # before allocate, which could take these very blocks
        block_ids = prefix + pool.allocate(num_new_blocks)
        num_cached_tokens = len(prefix) * self.block_size
        request.block_table = BlockTable(block_ids, num_cached_tokens)
        request.num_slots = len(block_ids) * self.block_size
        return num_cached_tokens

    def allocate_slots(self, request: CacheableRequest, num_new_tokens: int) -> list[int] | None:
        """Make room for the next `num_new_tokens` tokens to be computed.

        Returns the ids of the blocks that were added, often none, or None, with nothing changed, if they do not fit.
        """
        table = request.block_table
        assert table is not None, f"request {request.request_id} was never given its first blocks"
        num_tokens = request.num_computed_tokens + num_new_tokens
        if num_tokens <= request.num_slots:
            return []
        num_new_blocks = self._num_blocks_for(num_tokens) - len(table.block_ids)
        if num_new_blocks > self._pool.num_free:
            return None
        new_block_ids = self._pool.allocate(num_new_blocks)
        table.block_ids += new_block_ids
        request.num_slots = len(table.block_ids) * self.block_size
        return new_block_ids

    def publish_blocks(self, request: CacheableRequest, num_tokens: int) -> None:
        """Put the full blocks of the first `num_tokens` into the prefix cache.

        They are computed, or the step that is being planned computes them: whoever shares them in the same step reads
        what is written in it, for each layer writes all keys and values before any are read.
        """
        table, chain = request.block_table, request.block_hashes
        assert table is not None, f"request {request.request_id} holds no blocks"
        if chain is None or num_tokens - table.num_published_tokens < self.block_size:
            return
        chain.extend(request.token_ids)
        first = table.num_published_tokens // self.block_size
        end = num_tokens // self.block_size
        for index in range(first, end):
            self._pool.publish(table.block_ids[index], chain.hashes[index])
        table.num_published_tokens = end * self.block_size

    def block_ids(self, request: CacheableRequest) -> list[int]:
        """A copy of the block table of a request."""
        assert request.block_table is not None, f"request {request.request_id} holds no blocks"
        return request.block_table.block_ids.copy()

    def free(self, request: CacheableRequest, *, is_content_valid: bool = True) -> None:
        """Take all blocks of a request back. Their content stays in the prefix cache, unless it may be damaged."""
        table = request.block_table
        assert table is not None, f"the blocks of request {request.request_id} were freed twice"
        if is_content_valid:
            self.publish_blocks(request, request.num_computed_tokens)
        else:
            for block_id in table.block_ids:
                self._pool.forget(block_id)
                if self._pool.reference_count(block_id) == 1:
                    self._damaged_block_ids.append(block_id)
        request.block_table = None
        request.num_slots = 0
        # The end of a sequence goes first: fewer prompts can use it than its beginning.
        self._pool.free(reversed(table.block_ids))

    def take_damaged_blocks(self) -> list[int]:
        """Blocks that were freed with invalid content since the last call: zero them before they are read again."""
        block_ids, self._damaged_block_ids = self._damaged_block_ids, []
        return block_ids

    def reset_prefix_cache(self) -> None:
        """Forget the content of all blocks that no request holds."""
        self._pool.forget_all_free()

    def _num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _find_cached_prefix(self, request: CacheableRequest) -> list[int]:
        if request.block_hashes is None or not request.reads_prefix_cache:
            return []
        prefix: list[int] = []
        max_blocks = (len(request.token_ids) - 1) // self.block_size
        for block_hash in request.block_hashes.hashes[:max_blocks]:
            block_id = self._pool.find(block_hash)
            if block_id is None:
                break
            prefix.append(block_id)
        return prefix

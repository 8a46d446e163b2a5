"""What the scheduler and the core need of the place where computed tokens are kept, and a place that keeps none.

Runs in the engine core. `KVCacheManager` is the one of models that attend over their own past, `NoCache` the one of
encoders, whose attention needs a whole sequence at once.
"""

from typing import Protocol

from engined.cache.block_hash import BlockHasher
from engined.cache.kv_cache_manager import CacheableRequest


class SequenceCache(Protocol):
    """The methods are described at KVCacheManager."""

    block_size: int
    hasher: BlockHasher | None
    can_resume: bool
    """Whether a later step can go on where an earlier one stopped."""

    @property
    def num_token_slots(self) -> int: ...

    @property
    def usage(self) -> float: ...

    def allocate_sequence(self, request: CacheableRequest, num_spare_blocks: int = 0) -> int | None: ...

    def allocate_slots(self, request: CacheableRequest, num_new_tokens: int) -> list[int] | None: ...

    def publish_blocks(self, request: CacheableRequest, num_tokens: int) -> None: ...

    def block_ids(self, request: CacheableRequest) -> list[int]: ...

    def free(self, request: CacheableRequest, *, is_content_valid: bool = True) -> None: ...

    def take_damaged_blocks(self) -> list[int]: ...

    def reset_prefix_cache(self) -> None: ...


class NoCache(SequenceCache):
    """Every sequence fits, holds nothing, and has to be computed whole."""

    block_size = 1
    hasher = None
    can_resume = False

    def __init__(self, max_tokens: int) -> None:
        """A sequence may have `max_tokens`: what one step computes."""
        self._max_tokens = max_tokens

    @property
    def num_token_slots(self) -> int:
        return self._max_tokens

    @property
    def usage(self) -> float:
        return 0.0

    def allocate_sequence(self, request: CacheableRequest, num_spare_blocks: int = 0) -> int | None:
        return 0

    def allocate_slots(self, request: CacheableRequest, num_new_tokens: int) -> list[int] | None:
        return []

    def publish_blocks(self, request: CacheableRequest, num_tokens: int) -> None:
        pass

    def block_ids(self, request: CacheableRequest) -> list[int]:
        return []

    def free(self, request: CacheableRequest, *, is_content_valid: bool = True) -> None:
        pass

    def take_damaged_blocks(self) -> list[int]:
        return []

    def reset_prefix_cache(self) -> None:
        pass

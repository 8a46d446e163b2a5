"""Hashes that name the content of full KV blocks: equal hash, equal tokens from the start of the sequence on.

Pure functions of their arguments. Used by `Request` (in the core's input thread, for prompts) and `KVCacheManager`.
"""

from hashlib import sha256
from struct import Struct
from typing import NewType

BlockHash = NewType("BlockHash", bytes)


class BlockHashChain:
    """The hashes of one sequence's full blocks, extended as tokens arrive: sha256(hash before, tokens as int32).

    `hashes[i]` covers tokens 0 to (i + 1) * block_size of the sequence, and the root it was started from.
    """

    __slots__ = ("_block_format", "_block_size", "_root", "hashes")

    def __init__(self, block_size: int, block_format: Struct, root: BlockHash) -> None:
        self._block_size = block_size
        self._block_format = block_format
        self._root = root
        self.hashes: list[BlockHash] = []

    def extend(self, token_ids: list[int]) -> None:
        """Hash the full blocks of `token_ids` (the whole sequence so far) that have no hash yet."""
        block_size, pack, hashes = self._block_size, self._block_format.pack, self.hashes
        parent = hashes[-1] if hashes else self._root
        first_end = (len(hashes) + 1) * block_size
        for end in range(first_end, len(token_ids) + 1, block_size):
            # pack takes 0.3 us for 16 tokens, array("i", ...).tobytes() 1.1 us.
            parent = BlockHash(sha256(parent + pack(*token_ids[end - block_size : end])).digest())
            hashes.append(parent)


class BlockHasher:
    """Starts hash chains. It does not change, so any thread may use it.

    `secret` is random for each engine, so that nobody can know hashes beforehand or search for collisions.
    """

    def __init__(self, block_size: int, secret: bytes) -> None:
        self._block_size = block_size
        self._block_format = Struct(f"<{block_size}i")
        self._secret = secret

    def chain(self, extra_keys: tuple[str | None, ...]) -> BlockHashChain:
        """Start a chain. Sequences share blocks only if their extra keys (cache_salt, ...) are equal too.

        The keys enter the root, and with it every hash of the chain.
        """
        digest = sha256(self._secret)
        for key in extra_keys:
            if key is None:
                digest.update(b"-")
            else:
                content = key.encode("utf-8", "surrogatepass")
                digest.update(b"%d:%b" % (len(content), content))
        return BlockHashChain(self._block_size, self._block_format, BlockHash(digest.digest()))

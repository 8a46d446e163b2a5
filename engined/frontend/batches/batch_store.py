"""The records of all batches. Frontend process; one folder a batch, one index in memory.

batches/<id>/batch.json                   what the API says about it, and whose it is
batches/<id>/output.jsonl, errors.jsonl   its journal, until they become files
"""

import logging
from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec import Struct

from engined.errors import RequestError
from engined.frontend.api.batches import BatchObject
from engined.frontend.batches.disk import NewFolder, write_whole

logger = logging.getLogger(__name__)

RECORD_NAME = "batch.json"
OUTPUT_NAME = "output.jsonl"
ERROR_NAME = "errors.jsonl"
UNFINISHED = frozenset(("validating", "in_progress", "finalizing", "cancelling"))
"""Statuses that do not last."""


class StoredBatch(Struct, kw_only=True, frozen=True):
    """One batch, as its record says."""

    owner: str
    """The API key of its owner, as a hexadecimal digest; empty if it came without one."""
    key_name: str = ""
    """The name of that key when the batch began; empty if it came without one."""
    batch: BatchObject


class BatchStore:
    """All batches. Writing a record waits for the disk, but that is seldom: a batch has five or so."""

    def __init__(self, folder: Path) -> None:
        """Read the records. Raises OSError."""
        self._folder = folder
        self._batches: dict[str, StoredBatch] = {}
        for path in sorted(folder.glob(f"*/{RECORD_NAME}")):
            try:
                stored = msgspec.json.decode(path.read_bytes(), type=StoredBatch)
            except msgspec.DecodeError as error:
                logger.warning("%s cannot be read and is left out: %s", path, error)
            else:
                self._batches[stored.batch.id] = stored

    def get(self, batch_id: str, owner: str) -> StoredBatch:
        """One batch. Raises RequestError 404."""
        stored = self._batches.get(batch_id)
        if stored is None or stored.owner != owner:
            raise RequestError(f"there is no batch {batch_id[:64]!r}", param="batch_id", code="not_found", status=404)
        return stored

    def list(self, owner: str) -> list[BatchObject]:
        """The batches of one owner, newest first."""
        mine = [stored.batch for stored in self._batches.values() if stored.owner == owner]
        return sorted(mine, key=lambda batch: (batch.created_at, batch.id), reverse=True)

    def unfinished(self) -> Iterable[StoredBatch]:
        """The batches that have work left, oldest first."""
        found = [stored for stored in self._batches.values() if stored.batch.status in UNFINISHED]
        return sorted(found, key=lambda stored: (stored.batch.created_at, stored.batch.id))

    def add(self, stored: StoredBatch) -> None:
        """Take in a new batch. Raises OSError."""
        with NewFolder(self._folder / stored.batch.id) as folder:
            write_whole(folder.path / RECORD_NAME, msgspec.json.encode(stored))
            folder.commit()
        self._batches[stored.batch.id] = stored

    def save(self, stored: StoredBatch) -> None:
        """Replace a record. Raises OSError if it cannot be written; until the next start it counts all the same."""
        self._batches[stored.batch.id] = stored
        write_whole(self._folder / stored.batch.id / RECORD_NAME, msgspec.json.encode(stored))

    def journal_paths(self, batch_id: str) -> tuple[Path, Path]:
        """Where the results and the failures of a batch are collected."""
        folder = self._folder / batch_id
        return folder / OUTPUT_NAME, folder / ERROR_NAME

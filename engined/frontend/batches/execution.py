"""The life of one batch: validated, computed, published. Frontend process; one task a batch, owned by `BatchService`.

Each step ends with a new status in the record, so after a kill the step that was under way is done again: validating
reads only, computing goes on from the journal, and publishing finds what it has already published.
"""

import asyncio
import hashlib
import time
from pathlib import Path

import msgspec

from engined.batch.journal import Journal
from engined.batch.request_line import read_lines
from engined.batch.result_line import ErrorPart
from engined.batch.runner import Answer, BatchRunner, refuse_rest
from engined.batch.survey import Survey, survey
from engined.config.api_keys import DEFAULT_SCOPES, KeyLimits
from engined.frontend.access.caller import Caller
from engined.frontend.api.batches import MAX_BATCH_LINES, BatchFault, BatchFaultList, RequestCounts
from engined.frontend.batches.batch_store import BatchStore, StoredBatch
from engined.frontend.batches.file_store import FileStore

EXPIRED = ErrorPart(code="batch_expired", message="the batch was not done within its completion window")


class BatchExecution:
    """One batch under way. `batch` is its state now; the record on disk follows it."""

    def __init__(self, stored: StoredBatch, batches: BatchStore, files: FileStore) -> None:
        self.batch = stored.batch
        self._owner = stored.owner
        self._key_name = stored.key_name
        self._batches = batches
        self._files = files
        self._input_path = files.content_path(stored.batch.input_file_id)
        self._journal: Journal | None = None
        self._runner: BatchRunner | None = None
        self._is_stopping = False

    @property
    def counts(self) -> RequestCounts:
        """How far it has come, to the line."""
        if self._journal is None:
            return self.batch.request_counts
        return msgspec.structs.replace(
            self.batch.request_counts, completed=self._journal.num_completed, failed=self._journal.num_failed
        )

    @property
    def caller(self) -> Caller:
        """Who began it. Its lines are answered even if the key is gone meanwhile; they all have the same weight."""
        key_id = bytes.fromhex(self._owner)
        return Caller(key_id=key_id, name=self._key_name, scopes=DEFAULT_SCOPES, limits=KeyLimits())

    def stop(self) -> None:
        """Begin no further line; the next start of the daemon goes on."""
        self._is_stopping = True
        if self._runner is not None:
            self._runner.stop()

    async def run(self, answer: Answer, seats: asyncio.Semaphore) -> None:
        """Carry the batch to its end, or as far as it gets before `stop`.

        Raises BatchError or OSError if its files cannot be read or written.
        """
        if self.batch.status == "validating":
            await self._validate()
        if self.batch.status == "in_progress":
            await self._compute(answer, seats)
        if self.batch.status in ("finalizing", "cancelling"):
            await self._publish()

    def begin_cancelling(self) -> None:
        """Give up what is not computed yet. `run` must have ended, and is called again to publish the rest."""
        self._save(status="cancelling", cancelling_at=_now())

    def fail(self, fault: BatchFault) -> None:
        """End the batch for a reason that is no request's. Raises OSError if that cannot be written; it has ended then
        too."""
        self._save(status="failed", failed_at=_now(), errors=BatchFaultList(data=[fault]), request_counts=self.counts)

    async def _validate(self) -> None:
        found = await asyncio.to_thread(survey, self._input_path, (self.batch.endpoint,))
        if faults := _faults(found):
            self._save(status="failed", failed_at=_now(), errors=BatchFaultList(data=faults))
        else:
            counts = RequestCounts(total=found.num_lines)
            self._save(status="in_progress", in_progress_at=_now(), request_counts=counts)

    async def _compute(self, answer: Answer, seats: asyncio.Semaphore) -> None:
        urls = (self.batch.endpoint,)
        self._journal = journal = await _open_journal(*self._batches.journal_paths(self.batch.id))
        self._runner = BatchRunner(journal, answer, urls, seats)
        if self._is_stopping:
            self._runner.stop()
        try:
            async with asyncio.timeout(self.batch.expires_at - time.time()) as deadline:
                await self._runner.run(read_lines(self._input_path))
        except TimeoutError:
            if not deadline.expired():
                raise
            await refuse_rest(journal, read_lines(self._input_path), urls, EXPIRED)
            await asyncio.to_thread(journal.sync)
        finally:
            self.batch = msgspec.structs.replace(self.batch, request_counts=self.counts)
            self._journal = None
            journal.close()
        counts = self.batch.request_counts
        if counts.completed + counts.failed >= counts.total:
            expired_at = _now() if deadline.expired() else None
            self._save(status="finalizing", finalizing_at=_now(), expired_at=expired_at)

    async def _publish(self) -> None:
        """Make files of the results, then name them in the record, then remove the journal."""
        paths = self._batches.journal_paths(self.batch.id)
        journal = await _open_journal(*paths)
        counts = msgspec.structs.replace(
            self.batch.request_counts, completed=journal.num_completed, failed=journal.num_failed
        )
        await asyncio.to_thread(journal.sync)
        journal.close()
        output_id = self._publish_file("output", paths[0]) if counts.completed else None
        error_id = self._publish_file("errors", paths[1]) if counts.failed else None
        self._save(output_file_id=output_id, error_file_id=error_id, request_counts=counts, **self._last_change())
        for path in paths:
            path.unlink()

    def _last_change(self) -> dict[str, object]:
        if self.batch.status == "cancelling":
            return {"status": "cancelled", "cancelled_at": _now()}
        if self.batch.expired_at is not None:
            return {"status": "expired"}
        return {"status": "completed", "completed_at": _now()}

    def _publish_file(self, kind: str, path: Path) -> str:
        # The same id after a restart, so that a file that is already there is found.
        file_id = "file-" + hashlib.sha256(f"{self.batch.id} {kind}".encode()).hexdigest()[:32]
        self._files.publish(file_id, path, f"{self.batch.id}_{kind}.jsonl", self._owner)
        return file_id

    def _save(self, **changes: object) -> None:
        self.batch = msgspec.structs.replace(self.batch, **changes)
        self._batches.save(StoredBatch(owner=self._owner, key_name=self._key_name, batch=self.batch))


def _faults(found: Survey) -> list[BatchFault]:
    if found.num_lines == 0:
        return [BatchFault(code="empty_file", message="the file has no lines")]
    if found.num_lines > MAX_BATCH_LINES:
        message = f"the file has {found.num_lines} lines, but a batch may have {MAX_BATCH_LINES}: split it"
        return [BatchFault(code="too_many_lines", message=message)]
    faults = list(found.faults)
    return [BatchFault(code=fault.code, message=str(fault), param=fault.param, line=line) for line, fault in faults]


async def _open_journal(output_path: Path, error_path: Path) -> Journal:
    """Open it in a thread, because it reads all results; being cancelled does not leave it locked."""
    opening = asyncio.ensure_future(asyncio.to_thread(Journal, output_path, error_path))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        (await opening).close()
        raise


def _now() -> int:
    return int(time.time())

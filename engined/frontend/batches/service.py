"""All batches of a daemon: what the routes ask for, and the tasks that carry the batches out. Frontend process."""

import asyncio
import functools
import logging
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import msgspec

from engined.errors import BatchError, RequestError
from engined.frontend.api.batches import COMPLETION_SECONDS, BatchFault, BatchObject, CreateBatchRequest
from engined.frontend.async_llm import AsyncLLM
from engined.frontend.batches.answers import BatchAnswers
from engined.frontend.batches.batch_store import UNFINISHED, BatchStore, StoredBatch
from engined.frontend.batches.disk import DataDirectory
from engined.frontend.batches.execution import BatchExecution
from engined.frontend.batches.file_store import FileStore

logger = logging.getLogger(__name__)

MAX_UNFINISHED_BATCHES = 100
RETRY_SECONDS = 2.0
"""Between two attempts to get the data folder."""
READY_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Storage:
    """The data folder, once it is ours."""

    directory: DataDirectory
    files: FileStore
    batches: BatchStore


class BatchService:
    """Owns the data folder. Until it has it, every call answers 503 with the reason."""

    def __init__(self, data_path: Path, answers: BatchAnswers, engine: AsyncLLM, max_lines_under_way: int) -> None:
        self._data_path = data_path
        self._answers = answers
        self._engine = engine
        self._seats = asyncio.Semaphore(max_lines_under_way)
        self._storage: _Storage | None = None
        self._unavailable_reason = "the data folder is not open yet"
        self._executions: dict[str, BatchExecution] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._is_stopping = False
        self._death: BaseException | None = None
        self._has_died = asyncio.Event()

    # The life of the service.

    def open(self) -> None:
        """Get the data folder, if it can be had now, and go on with the batches in it."""
        self._storage = storage = self._open_storage()
        if storage is None:
            return
        for stored in storage.batches.unfinished():
            logger.info("going on with %s, which is %s", stored.batch.id, stored.batch.status)
            self._start(BatchExecution(stored, storage.batches, storage.files))

    async def run(self) -> None:
        """Get the data folder if `open` could not, however long that takes; then watch the batches.

        Raises what the task of a batch died of: such a batch would look under way, and never end. The next process
        goes on with it.
        """
        while self._storage is None:
            await asyncio.sleep(RETRY_SECONDS)
            self.open()
        await self._has_died.wait()
        assert self._death is not None
        raise self._death

    def stop(self) -> None:
        """Begin no further line: the daemon stops. Those under way count among the engine's running sequences."""
        self._is_stopping = True
        for execution in self._executions.values():
            execution.stop()

    async def close(self) -> None:
        """Give up what is still under way; the next daemon does it again."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._storage is not None:
            self._storage.directory.close()

    # What the routes ask for.

    @property
    def files(self) -> FileStore:
        """All files. Raises RequestError 503."""
        return self._require_storage().files

    def delete_file(self, file_id: str, owner: str) -> None:
        """Remove a file. Raises RequestError 404, or 400 while a batch reads it."""
        self.files.get(file_id, owner)
        for batch in self._require_storage().batches.list(owner):
            if batch.input_file_id == file_id and batch.status in UNFINISHED:
                raise RequestError(
                    f"{batch.id} reads this file: cancel the batch first, or wait for its end", code="file_in_use"
                )
        self.files.delete(file_id)

    def create(self, request: CreateBatchRequest, owner: str, key_name: str) -> BatchObject:
        """Begin a batch. Raises RequestError."""
        storage = self._require_storage()
        if request.endpoint not in self._answers.urls:
            urls = ", ".join(self._answers.urls)
            raise RequestError(f"endpoint must be one of {urls}, which this model serves", param="endpoint")
        try:
            input_file = storage.files.get(request.input_file_id, owner)
        except RequestError as error:
            raise RequestError(f"input_file_id: {error}", param="input_file_id") from None
        if input_file.purpose != "batch":
            raise RequestError("input_file_id: the file was not uploaded for a batch", param="input_file_id")
        if len(self._executions) >= MAX_UNFINISHED_BATCHES:
            raise RequestError(
                f"{MAX_UNFINISHED_BATCHES} batches are unfinished: wait for one to end",
                status=429,
                type="rate_limit_error",
                code="rate_limit_exceeded",
            )
        now = int(time.time())
        batch = BatchObject(
            id=f"batch_{uuid.uuid4().hex}",
            endpoint=request.endpoint,
            input_file_id=request.input_file_id,
            status="validating",
            created_at=now,
            expires_at=now + COMPLETION_SECONDS,
            metadata=request.metadata,
        )
        stored = StoredBatch(owner=owner, key_name=key_name, batch=batch)
        storage.batches.add(stored)
        self._start(BatchExecution(stored, storage.batches, storage.files))
        return batch

    def get(self, batch_id: str, owner: str) -> BatchObject:
        """One batch, as it stands now. Raises RequestError."""
        return self._with_counts(self._require_storage().batches.get(batch_id, owner).batch)

    def list(self, owner: str) -> list[BatchObject]:
        """All batches of one owner, newest first. Raises RequestError 503."""
        return [self._with_counts(batch) for batch in self._require_storage().batches.list(owner)]

    async def cancel(self, batch_id: str, owner: str) -> BatchObject:
        """Give up what is not computed yet; the results so far become files. Raises RequestError."""
        self._require_storage().batches.get(batch_id, owner)
        execution = self._executions.get(batch_id)
        if execution is not None and execution.batch.status in ("validating", "in_progress"):
            task = self._tasks[batch_id]
            task.cancel()
            await asyncio.wait([task])
            # Its last step may have been quicker.
            if execution.batch.status in ("validating", "in_progress"):
                execution.begin_cancelling()
                self._start(execution)
        batch = self.get(batch_id, owner)
        if batch.status not in ("cancelling", "cancelled"):
            raise RequestError(f"the batch is {batch.status}: it can no longer be cancelled", code="invalid_status")
        return batch

    # Tasks.

    def _start(self, execution: BatchExecution) -> None:
        batch_id = execution.batch.id
        self._executions[batch_id] = execution
        self._tasks[batch_id] = task = asyncio.create_task(self._carry_out(execution), name=batch_id)
        task.add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._death = error
            self._has_died.set()

    async def _carry_out(self, execution: BatchExecution) -> None:
        batch_id = execution.batch.id
        if self._is_stopping:
            execution.stop()
        try:
            await self._until_ready()
            await execution.run(functools.partial(self._answers.answer, execution.caller), self._seats)
        except (BatchError, OSError) as error:
            logger.error("%s failed: %s", batch_id, error)
            self._fail(
                execution, BatchFault(code="batch_failed", message="the server could not read or write its files")
            )
        except asyncio.CancelledError:
            raise
        except BaseException:
            # The outermost boundary of a batch: one that fails, were it by a panic of a native library, which is no
            # Exception, must not take the others with it.
            logger.exception("%s failed", batch_id)
            self._fail(execution, BatchFault(code="internal_error", message="internal server error"))
        if execution.batch.status not in UNFINISHED:
            counts = execution.batch.request_counts
            logger.info(
                "%s %s: %d completed, %d failed of %d",
                batch_id,
                execution.batch.status,
                counts.completed,
                counts.failed,
                counts.total,
            )
            del self._executions[batch_id], self._tasks[batch_id]

    def _fail(self, execution: BatchExecution, fault: BatchFault) -> None:
        try:
            execution.fail(fault)
        except OSError as error:
            # Most likely the disk is full, which is also why the batch failed. It has ended all the same, and its place
            # must come free; the next daemon finds it unfinished and tries again.
            logger.error("%s: its end could not be written: %s", execution.batch.id, error)

    async def _until_ready(self) -> None:
        while self._engine.ready is None and not self._is_stopping:
            await asyncio.sleep(READY_POLL_SECONDS)

    def _with_counts(self, batch: BatchObject) -> BatchObject:
        execution = self._executions.get(batch.id)
        return batch if execution is None else msgspec.structs.replace(batch, request_counts=execution.counts)

    # Storage.

    def _require_storage(self) -> _Storage:
        if self._storage is None:
            raise RequestError(
                f"files and batches: {self._unavailable_reason}",
                status=503,
                type="server_error",
                code="data_dir_unavailable",
            )
        return self._storage

    def _open_storage(self) -> _Storage | None:
        try:
            directory = DataDirectory(self._data_path)
            return _Storage(
                directory=directory, files=FileStore(directory.files), batches=BatchStore(directory.batches)
            )
        except BlockingIOError:
            reason = "another engined on this machine uses the data folder: start this one with a --data-dir of its own"
        except OSError as error:
            reason = f"the data folder cannot be used ({error.strerror}): start engined with another --data-dir"
        if reason != self._unavailable_reason:
            logger.warning("files and batches are not available: %s (%s)", reason, self._data_path)
            self._unavailable_reason = reason
        return None

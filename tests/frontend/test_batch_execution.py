"""The life of a batch on the disk, cut off and taken up again between any two of its steps. Answers are made up."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engined.batch.journal import Journal
from engined.batch.request_line import RequestLine
from engined.batch.result_line import LineAnswer, answered
from engined.batch.runner import Answer
from engined.frontend.api.batches import BatchObject, RequestCounts
from engined.frontend.batches.batch_store import BatchStore, StoredBatch
from engined.frontend.batches.disk import DataDirectory, NewFolder, write_whole
from engined.frontend.batches.execution import BatchExecution
from engined.frontend.batches.file_store import FileStore

NUM_LINES = 20
OWNER = "f00d"


class Daemon:
    """The stores of one daemon; making another one on the same folder is its restart."""

    def __init__(self, path: Path) -> None:
        self.directory = DataDirectory(path)
        self.files = FileStore(self.directory.files)
        self.batches = BatchStore(self.directory.batches)

    async def add_batch(self, **changes: Any) -> str:
        with self.files.upload() as upload:
            for number in range(NUM_LINES):
                line = {"custom_id": f"{number}", "method": "POST", "url": "/v1/completions", "body": {}}
                upload.write(json.dumps(line).encode() + b"\n")
            file = await upload.finish("in.jsonl", OWNER)
        now = int(time.time())
        batch = BatchObject(
            id="batch_1",
            endpoint="/v1/completions",
            input_file_id=file.id,
            status="validating",
            created_at=now,
            expires_at=now + 3600,
        )
        self.batches.add(StoredBatch(owner=OWNER, batch=msgspec.structs.replace(batch, **changes)))
        return batch.id

    def execution(self) -> BatchExecution:
        [stored] = self.batches.unfinished()
        return BatchExecution(stored, self.batches, self.files)

    def results(self, file_id: str | None) -> list[str]:
        """The custom_ids in a file of results."""
        if file_id is None:
            return []
        self.files.get(file_id, OWNER)
        return [json.loads(line)["custom_id"] for line in self.files.content_path(file_id).read_text().splitlines()]


@pytest.fixture
def restart(tmp_path: Path) -> Iterator[Callable[[], Daemon]]:
    daemons: list[Daemon] = []

    def start() -> Daemon:
        if daemons:
            daemons.pop().directory.close()
        daemons.append(Daemon(tmp_path / "data"))
        return daemons[-1]

    yield start
    daemons.pop().directory.close()


async def even_ones(line: RequestLine) -> LineAnswer:
    """Half of the lines fail."""
    is_even = int(line.custom_id) % 2 == 0
    return LineAnswer(status=200 if is_even else 400, request_id="r", body={} if is_even else {"error": {}})


def up_to(number: int, then: Callable[[], None]) -> Answer:
    """Answers, and calls `then` at a line."""

    async def answer(line: RequestLine) -> LineAnswer:
        if int(line.custom_id) == number:
            then()
        await asyncio.sleep(0.001)
        return await even_ones(line)

    return answer


async def run_and_cancel_at(execution: BatchExecution, number: int, num_seats: int) -> None:
    task = asyncio.create_task(execution.run(up_to(number, lambda: task.cancel()), asyncio.Semaphore(num_seats)))
    await asyncio.wait([task])


async def finish(daemon: Daemon) -> BatchObject:
    execution = daemon.execution()
    await execution.run(even_ones, asyncio.Semaphore(4))
    assert not list(daemon.batches.unfinished())
    assert daemon.batches.get("batch_1", OWNER).batch == execution.batch
    return execution.batch


def check_completed(daemon: Daemon, batch: BatchObject) -> None:
    assert batch.status == "completed"
    assert batch.request_counts == RequestCounts(total=NUM_LINES, completed=NUM_LINES // 2, failed=NUM_LINES // 2)
    completed, failed = daemon.results(batch.output_file_id), daemon.results(batch.error_file_id)
    assert sorted(map(int, completed)) == list(range(0, NUM_LINES, 2))
    assert sorted(map(int, failed)) == list(range(1, NUM_LINES, 2))
    assert len(daemon.files.list(OWNER)) == 3 and not list(daemon.directory.batches.glob("*/*.jsonl"))


async def test_from_beginning_to_end(restart: Callable[[], Daemon]) -> None:
    daemon = restart()
    await daemon.add_batch()
    batch = await finish(daemon)
    check_completed(daemon, batch)
    assert restart().batches.get("batch_1", OWNER).batch == batch


async def test_stopping_leaves_it_in_progress(restart: Callable[[], Daemon]) -> None:
    daemon = restart()
    await daemon.add_batch()
    execution = daemon.execution()
    await execution.run(up_to(9, execution.stop), asyncio.Semaphore(4))
    assert execution.batch.status == "in_progress" and 8 <= sum(msgspec.structs.astuple(execution.counts)[1:]) < 20
    daemon = restart()
    check_completed(daemon, await finish(daemon))


async def test_being_cancelled_at_any_line_loses_nothing(restart: Callable[[], Daemon]) -> None:
    daemon = restart()
    await daemon.add_batch()
    for number in range(0, NUM_LINES, 3):
        await run_and_cancel_at(daemon.execution(), number, num_seats=3)
        daemon = restart()
    check_completed(daemon, await finish(daemon))


async def test_a_kill_while_publishing_publishes_once(
    restart: Callable[[], Daemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = restart()
    await daemon.add_batch()
    for step in ("publish", "save"):
        execution = daemon.execution()
        with monkeypatch.context() as patch:

            def die(*args: Any, published: Any = daemon.files.publish, step: str = step, **kwargs: Any) -> None:
                """Killed after the first file is there, or before the record says so."""
                if step == "publish":
                    published(*args, **kwargs)
                raise KeyboardInterrupt

            if step == "publish":
                patch.setattr(daemon.files, "publish", die)
            else:
                patch.setattr(daemon.batches, "save", die)
            with pytest.raises(KeyboardInterrupt):
                await execution.run(even_ones, asyncio.Semaphore(4))
        daemon = restart()
        assert daemon.execution().batch.status == "finalizing"
    check_completed(daemon, await finish(daemon))


async def test_what_is_late_expires_and_the_rest_is_kept(restart: Callable[[], Daemon]) -> None:
    daemon = restart()
    await daemon.add_batch(expires_at=int(time.time()) + 1)

    async def answer(line: RequestLine) -> LineAnswer:
        if int(line.custom_id) >= 6:
            await asyncio.Event().wait()
        return await even_ones(line)

    execution = daemon.execution()
    await execution.run(answer, asyncio.Semaphore(4))
    batch = execution.batch
    assert batch.status == "expired" and batch.expired_at is not None and batch.completed_at is None
    assert batch.request_counts == RequestCounts(total=20, completed=3, failed=17)
    assert len(daemon.results(batch.output_file_id)) == 3 and len(daemon.results(batch.error_file_id)) == 17
    text = daemon.files.content_path(batch.error_file_id or "").read_text()
    assert text.count("batch_expired") == 14


async def test_cancelling_publishes_what_there_is_also_after_a_restart(restart: Callable[[], Daemon]) -> None:
    daemon = restart()
    await daemon.add_batch()
    execution = daemon.execution()
    await run_and_cancel_at(execution, 10, num_seats=1)
    execution.begin_cancelling()
    daemon = restart()
    batch = await finish(daemon)
    assert batch.status == "cancelled" and batch.cancelled_at is not None
    assert batch.request_counts == RequestCounts(total=20, completed=5, failed=5)
    assert sorted(map(int, daemon.results(batch.output_file_id))) == [0, 2, 4, 6, 8]


async def test_a_batch_without_results_has_no_files(restart: Callable[[], Daemon]) -> None:
    daemon = restart()
    await daemon.add_batch(status="cancelling")
    batch = await finish(daemon)
    assert (batch.status, batch.output_file_id, batch.error_file_id) == ("cancelled", None, None)


async def test_a_journal_of_a_killed_daemon_is_taken_up(restart: Callable[[], Daemon]) -> None:
    daemon = restart()
    batch_id = await daemon.add_batch(status="in_progress", request_counts=RequestCounts(total=NUM_LINES))
    paths = daemon.batches.journal_paths(batch_id)
    with Journal(*paths) as journal:
        for number in (0, 2, 4):
            line_answer = LineAnswer(status=200, request_id="before", body={})
            journal.write(answered(number + 1, str(number), line_answer))
    with paths[0].open("ab") as file:
        file.write(b'{"id":"batch_req_99"')
    daemon = restart()
    batch = await finish(daemon)
    check_completed(daemon, batch)
    assert daemon.files.content_path(batch.output_file_id or "").read_text().count("before") == 3


async def test_a_lost_input_is_an_error_and_not_a_hang(restart: Callable[[], Daemon]) -> None:
    daemon = restart()
    await daemon.add_batch()
    daemon.files.delete(daemon.execution().batch.input_file_id)
    with pytest.raises(FileNotFoundError):
        await daemon.execution().run(even_ones, asyncio.Semaphore(1))


def test_the_folder_has_one_daemon_at_a_time(tmp_path: Path) -> None:
    first = DataDirectory(tmp_path)
    with pytest.raises(BlockingIOError):
        DataDirectory(tmp_path)
    first.close()
    DataDirectory(tmp_path).close()


def test_what_was_being_written_is_gone_after_a_kill(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    folder = NewFolder(directory.files / "file-1")
    folder.__enter__()  # killed before it is left
    write_whole(folder.path / "content", b"half")
    directory.close()
    directory = DataDirectory(tmp_path)
    assert list(directory.files.iterdir()) == []
    directory.close()


def test_a_record_that_cannot_be_read_harms_no_other(
    restart: Callable[[], Daemon], caplog: pytest.LogCaptureFixture
) -> None:
    daemon = restart()
    for name in ("good", "bad"):
        with NewFolder(daemon.directory.files / name) as folder:
            (folder.path / "content").write_bytes(b"x")
            daemon.files.add(folder, name, name, "batch", OWNER)
    (daemon.directory.files / "bad" / "file.json").write_text("{")
    assert [file.id for file in restart().files.list(OWNER)] == ["good"]
    assert "bad/file.json cannot be read" in caplog.text

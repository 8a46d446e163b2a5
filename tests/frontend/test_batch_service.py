"""Batches in a running frontend, in front of a scripted engine."""

import asyncio
import errno
import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from engined.batch.request_line import BATCH_URLS
from engined.checkpoint.model_info import ModelInfo
from engined.config.schema import Config, SchedulerConfig, ServerConfig
from engined.errors import EnginedError
from engined.frontend.batches import batch_store
from engined.frontend.batches import service as service_module
from engined.frontend.batches.answers import BatchAnswers
from engined.frontend.batches.disk import DataDirectory
from engined.frontend.metrics import Metrics
from engined.frontend.serving.build import build_serving_context
from tests.frontend.conftest import RunningFrontend, StartFrontend


async def upload(frontend: RunningFrontend, num_lines: int, **body: Any) -> str:
    line = {"method": "POST", "url": "/v1/completions", "body": {"prompt": "Hello", **body}}
    text = "".join(json.dumps({"custom_id": f"{number}", **line}) + "\n" for number in range(num_lines))
    form = aiohttp.FormData({"purpose": "batch"})
    form.add_field("file", text.encode(), filename="in.jsonl")
    async with frontend.client.post("http://engined/v1/files", data=form) as response:
        answer = await response.json()
        assert response.status == 200, answer
        return str(answer["id"])


async def create(frontend: RunningFrontend, file_id: str) -> tuple[int, Any]:
    return await frontend.post(
        "/v1/batches", {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
    )


async def wait_for_status(frontend: RunningFrontend, batch_id: str, status: str) -> Any:
    async with asyncio.timeout(10):
        while (batch := (await frontend.get(f"/v1/batches/{batch_id}"))[1])["status"] != status:
            await asyncio.sleep(0.01)
    return batch


def test_every_url_of_the_format_is_answered_by_one_kind_of_model(model_info: ModelInfo) -> None:
    context = build_serving_context(Config(), model_info, Metrics(), "/nowhere.sock")
    pooling = replace(context, model_info=replace(model_info, runner="pooling"))
    assert {*BatchAnswers(context).urls, *BatchAnswers(pooling).urls} == {*BATCH_URLS}


async def test_lines_are_background_requests_and_others_are_not(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    status, batch = await create(frontend, await upload(frontend, 5, n=2))
    assert status == 200
    await wait_for_status(frontend, batch["id"], "completed")
    assert len(frontend.engine.added) == 10 and all(request.is_background for request in frontend.engine.added)
    await frontend.post("/v1/completions", {"prompt": "Hello"})
    assert not frontend.engine.added[-1].is_background


async def test_cancelling_aborts_what_is_under_way(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    frontend.engine.stall_after = 1
    _, batch = await create(frontend, await upload(frontend, 5))
    async with asyncio.timeout(5):
        while len(frontend.engine.added) < 5:
            await asyncio.sleep(0.01)
    status, answer = await frontend.post(f"/v1/batches/{batch['id']}/cancel", {})
    assert status == 200 and answer["status"] in ("cancelling", "cancelled")
    await frontend.engine.wait_for_abort(5)
    await wait_for_status(frontend, batch["id"], "cancelled")


async def test_a_batch_outlives_its_engine(start_frontend: StartFrontend) -> None:
    """Lines that were under way when the engine died are asked again when it is back."""
    frontend = await start_frontend()
    frontend.engine.stall_after = 1
    _, batch = await create(frontend, await upload(frontend, 3))
    async with asyncio.timeout(5):
        while len(frontend.engine.added) < 3:
            await asyncio.sleep(0.01)
    frontend.engine.stall_after = None
    frontend.engine.die("out of memory")
    await frontend.engine.send_ready()
    batch = await wait_for_status(frontend, batch["id"], "completed")
    assert batch["request_counts"] == {"total": 3, "completed": 3, "failed": 0}


async def test_a_daemon_that_stops_begins_no_further_line(start_frontend: StartFrontend, tmp_path: Path) -> None:
    config = Config(
        server=ServerConfig(data_dir=str(tmp_path), shutdown_timeout=0.3), scheduler=SchedulerConfig(max_num_seqs=4)
    )
    frontend = await start_frontend(config=config)
    frontend.engine.stalls = lambda request: request not in frontend.engine.added[:2]
    frontend.engine.stall_after = 1
    await create(frontend, await upload(frontend, 20))
    async with asyncio.timeout(5):
        while len(frontend.engine.added) < 6:  # two lines are done, four are under way
            await asyncio.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(5):
        await frontend.task
    assert len(frontend.engine.added) == 6 and len(frontend.engine.aborted) == 4
    [record] = tmp_path.glob("batches/*/batch.json")
    assert json.loads(record.read_text())["batch"]["status"] == "in_progress"
    assert (record.parent / "output.jsonl").read_text().count("\n") == 2


async def test_a_data_folder_that_another_daemon_has_is_said_and_waited_for(
    start_frontend: StartFrontend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "RETRY_SECONDS", 0.02)
    other = DataDirectory(tmp_path / "data")
    frontend = await start_frontend(config=Config(server=ServerConfig(data_dir=str(tmp_path / "data"))))
    async with asyncio.timeout(5):
        while "another engined" not in (answer := (await frontend.get("/v1/batches"))[1])["error"]["message"]:
            await asyncio.sleep(0.01)
    assert answer["error"]["code"] == "data_dir_unavailable"
    assert (await frontend.get("/v1/files"))[0] == 503
    assert (await frontend.post("/v1/completions", {"prompt": "Hello"}))[0] == 200
    other.close()
    async with asyncio.timeout(5):
        while (await frontend.get("/v1/files"))[0] != 200:
            await asyncio.sleep(0.01)


async def test_a_data_folder_that_cannot_be_made_is_said(start_frontend: StartFrontend, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    frontend = await start_frontend(config=Config(server=ServerConfig(data_dir=str(tmp_path / "file" / "data"))))
    async with asyncio.timeout(5):
        while "--data-dir" not in (answer := (await frontend.get("/v1/files"))[1])["error"]["message"]:
            await asyncio.sleep(0.01)
    assert answer["error"]["type"] == "server_error"


async def test_a_disk_that_is_full_ends_the_batch_and_frees_its_place(
    start_frontend: StartFrontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    frontend = await start_frontend()
    file_id = await upload(frontend, 3)

    def is_full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    status, batch = await create(frontend, file_id)
    monkeypatch.setattr(batch_store, "write_whole", is_full)
    assert status == 200
    await wait_for_status(frontend, batch["id"], "failed")
    monkeypatch.undo()
    # A batch that still counted as unfinished would keep the file.
    async with frontend.client.delete(f"http://engined/v1/files/{file_id}") as response:
        assert response.status == 200


async def test_a_batch_whose_task_dies_ends_the_process(
    start_frontend: StartFrontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would look under way for ever, and keep its place; the next process goes on with it."""
    frontend = await start_frontend()
    file_id = await upload(frontend, 3)

    def is_broken(path: Path, data: bytes) -> None:
        raise RuntimeError("a mistake of ours")

    status, _ = await create(frontend, file_id)
    monkeypatch.setattr(batch_store, "write_whole", is_broken)
    assert status == 200
    with pytest.raises(EnginedError, match="the task 'batches' of the frontend ended"):
        await asyncio.wait_for(asyncio.shield(frontend.task), 10)

"""What operators see and do: live requests, their end, the state of the server. In front of a scripted engine."""

import asyncio
import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from engined.config.schema import Config, ServerConfig
from engined.errors import EnginedError
from engined.frontend.recent_rates import WINDOW_SECONDS, RecentRates
from tests.frontend.conftest import RunningFrontend, StartFrontend

SECRET = "the prompt that nobody may see"
CHAT = {"messages": [{"role": "user", "content": SECRET}]}
KEYS = {"alice": "weight=4", "bob": "", "root": "scopes=admin,inference"}


@pytest.fixture
def keyed(tmp_path: Path) -> Config:
    """Three named keys, each of which is its name; only root's is an operator's."""
    path = tmp_path / "keys"
    lines = (f"{name} sha256:{hashlib.sha256(name.encode()).hexdigest()} {rest}\n" for name, rest in KEYS.items())
    path.write_text("".join(lines))
    path.chmod(0o600)
    return Config(server=ServerConfig(api_keys_file=str(path)))


def key(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


async def list_live(frontend: RunningFrontend, count: int, **kwargs: Any) -> list[dict[str, Any]]:
    """The live requests, once there are `count` of them and those that run have generated something."""
    async with asyncio.timeout(5):
        while True:
            status, body = await frontend.get("/admin/requests", **kwargs)
            assert status == 200, body
            data: list[dict[str, Any]] = body["data"]
            if len(data) == count and all(row["generated_tokens"] or row["state"] == "waiting" for row in data):
                return data
            await asyncio.sleep(0.01)


async def delete(frontend: RunningFrontend, path: str, **kwargs: Any) -> tuple[int, Any]:
    async with frontend.client.delete(f"http://engined{path}", **kwargs) as response:
        return response.status, await response.json()


async def test_a_live_request_is_listed_without_its_prompt(start_frontend: StartFrontend, keyed: Config) -> None:
    frontend = await start_frontend(keyed)
    frontend.engine.stall_after = 3
    headers = key("alice") | {"X-Request-Id": "my-label"}
    body = CHAT | {"stream": True, "n": 2}
    async with frontend.client.post("http://engined/v1/chat/completions", json=body, headers=headers) as response:
        await response.content.readline()
        async with asyncio.timeout(5):
            while (row := (await list_live(frontend, 1, headers=key("root")))[0])["generated_tokens"] < 6:
                await asyncio.sleep(0.01)
        assert row == {
            "id": frontend.engine.added[0].request_id.removesuffix("-0"),
            "object": "request",
            "label": "my-label",
            "key": "alice",
            "endpoint": "/v1/chat/completions",
            "model": "smol",
            "state": "running",
            "position": None,
            "num_sequences": 2,
            "prompt_tokens": len(frontend.engine.added[0].prompt_token_ids),
            "cached_tokens": 3,
            "generated_tokens": 6,
            "age_s": row["age_s"],
            "stream": True,
            "background": False,
        }
        assert 0 < row["age_s"] < 5
    assert await list_live(frontend, 0, headers=key("root")) == []


async def test_operators_need_the_scope_admin(start_frontend: StartFrontend, keyed: Config) -> None:
    frontend = await start_frontend(keyed)
    for path in ("/admin/requests", "/admin/status"):
        assert [(await frontend.get(path, headers=key(name)))[0] for name in ("nobody", "bob", "root")] == [
            401,
            403,
            200,
        ]
    assert (await delete(frontend, "/admin/requests/x", headers=key("bob")))[0] == 403


async def test_positions_are_those_of_the_engines_queue(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    engine = frontend.engine
    engine.stall_after = 1
    engine.holds = lambda request: len(engine.added) > 1
    posts = []
    for number in range(3):
        posts.append(asyncio.create_task(frontend.post("/v1/completions", {"prompt": SECRET})))
        await list_live(frontend, number + 1)
    engine.waiting.reverse()  # the order is the engine's, not that of arrival
    rows = await list_live(frontend, 3)
    assert [(row["state"], row["position"]) for row in rows] == [("running", None), ("waiting", 2), ("waiting", 1)]
    # A preempted request has run, and is in the queue.
    engine.waiting.insert(0, engine.added[0].request_id)
    assert [(row["state"], row["position"]) for row in await list_live(frontend, 3)][0] == ("preempted", 1)
    engine.waiting.pop(0)

    # An engine that does not answer costs the positions, and not the list.
    engine.answers_utilities = False
    begin = time.monotonic()
    rows = await list_live(frontend, 3)
    assert [(row["state"], row["position"]) for row in rows] == [
        ("running", None),
        ("waiting", None),
        ("waiting", None),
    ]
    assert time.monotonic() - begin < 2
    assert SECRET not in json.dumps(rows)
    for row in rows:
        assert (await delete(frontend, f"/admin/requests/{row['id']}"))[0] == 200
    assert [status for status, _ in await asyncio.gather(*posts)] == [410] * 3


async def test_a_cancelled_request_ends_with_an_error(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    frontend.engine.stall_after = 2
    streamed = asyncio.create_task(frontend.stream("/v1/chat/completions", CHAT))
    whole = asyncio.create_task(frontend.post("/v1/completions", {"prompt": "x"}))
    message = asyncio.create_task(frontend.post("/v1/messages", CHAT | {"max_tokens": 9}))
    rows = {row["endpoint"]: row["id"] for row in await list_live(frontend, 3)}

    for wrong in ("x", rows["/v1/completions"][:-1], rows["/v1/completions"] + "-0", "my-label", "*"):
        status, answer = await delete(frontend, f"/admin/requests/{wrong}")
        assert (status, answer["error"]["code"]) == (404, "request_not_found"), wrong
    assert frontend.engine.aborted == []

    for request_id in rows.values():
        assert await delete(frontend, f"/admin/requests/{request_id}") == (
            200,
            {"id": request_id, "object": "request", "cancelled": True},
        )
    *chunks, last, done = await streamed
    assert chunks and json.loads(last)["error"]["code"] == "request_cancelled"
    assert done == "[DONE]"
    status, answer = await whole
    assert (status, answer["error"]["code"]) == (410, "request_cancelled")
    status, answer = await message
    assert (status, answer["type"]) == (410, "error")
    await frontend.engine.wait_for_abort(3)
    assert {request_id.removesuffix("-0") for request_id in frontend.engine.aborted} == set(rows.values())
    assert await list_live(frontend, 0) == []
    assert (await delete(frontend, f"/admin/requests/{rows['/v1/messages']}"))[0] == 404


async def test_a_client_that_does_not_read_holds_no_seat_after_a_cancel(start_frontend: StartFrontend) -> None:
    num_tokens = 3000
    frontend = await start_frontend(script=lambda request: [330] * num_tokens * 2, max_model_len=num_tokens * 3)
    frontend.engine.stall_after = num_tokens
    body = {"prompt": "x", "stream": True, "max_tokens": num_tokens * 2, "ignore_eos": True}
    async with frontend.client.post("http://engined/v1/completions", json=body) as response:
        await response.content.readline()
        response.connection.transport.pause_reading()  # type: ignore[union-attr]
        # As events these are more than the kernel's buffers hold, so that the handler waits to write.
        async with asyncio.timeout(20):
            while (row := (await list_live(frontend, 1))[0])["generated_tokens"] < num_tokens:
                await asyncio.sleep(0.05)
        assert (await delete(frontend, f"/admin/requests/{row['id']}"))[0] == 200
        await frontend.engine.wait_for_abort(1)
        assert not frontend.engine.running


async def test_who_asks_is_told_to_the_engine(start_frontend: StartFrontend, keyed: Config) -> None:
    frontend = await start_frontend(keyed)
    bodies: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": "x"},
        "/v1/chat/completions": CHAT,
        "/v1/messages": CHAT | {"max_tokens": 9},
        "/v1/responses": {"input": "x"},
    }
    for route, body in bodies.items():
        for name in ("alice", "bob"):
            status, answer = await frontend.post(route, body, headers=key(name))
            assert status == 200, answer
    added = frontend.engine.added
    assert [(request.tenant, request.tenant_weight) for request in added] == [("alice", 4.0), ("bob", 1.0)] * 4
    assert len({request.cache_salt for request in added}) == 2


async def test_lines_of_a_batch_are_their_owners(start_frontend: StartFrontend, keyed: Config) -> None:
    frontend = await start_frontend(keyed)
    await frontend.post("/v1/completions", {"prompt": "x"}, headers=key("alice"))
    frontend.engine.stall_after = 1
    line = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": SECRET}}
    form = aiohttp.FormData({"purpose": "batch"})
    form.add_field("file", json.dumps(line).encode(), filename="in.jsonl")
    async with frontend.client.post("http://engined/v1/files", data=form, headers=key("alice")) as response:
        file_id = (await response.json())["id"]
    body = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
    _, batch = await frontend.post("/v1/batches", body, headers=key("alice"))
    [row] = await list_live(frontend, 1, headers=key("root"))
    assert (row["key"], row["endpoint"], row["background"]) == ("alice", "/v1/completions", True)
    alone, of_batch = frontend.engine.added
    assert (of_batch.tenant, of_batch.cache_salt, of_batch.is_background) == ("alice", alone.cache_salt, True)
    assert (await delete(frontend, f"/admin/requests/{row['id']}", headers=key("root")))[0] == 200
    async with asyncio.timeout(5):
        while batch["status"] != "completed":
            await asyncio.sleep(0.01)
            _, batch = await frontend.get(f"/v1/batches/{batch['id']}", headers=key("alice"))
    assert batch["request_counts"] == {"total": 1, "completed": 0, "failed": 1}


async def test_status(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend(is_ready=False)
    _, status = await frontend.get("/admin/status")
    assert (status["status"], status["engine"], status["load"]["live_requests"]) == ("unavailable", None, 0)
    assert "loading" in status["reason"]

    await frontend.engine.send_ready()
    async with asyncio.timeout(5):
        while (status := (await frontend.get("/admin/status"))[1])["status"] != "ready":
            await asyncio.sleep(0.01)
    assert status["reason"] is None
    assert (status["models"], status["runner"], status["restarts"]) == (["smol"], "generate", 0)
    assert status["engine"] | {"version": ""} == {
        "pid": 1,
        "version": "",
        "dtype": "float32",
        "quantization": "none",
        "kv_cache_dtype": "float32",
        "num_kv_blocks": 64,
        "block_size": 16,
        "max_model_len": 512,
    }
    assert (await frontend.post("/v1/completions", {"prompt": "x", "max_tokens": 5}))[0] == 200
    load = (await frontend.get("/admin/status"))[1]["load"]
    assert load["kv_cache_usage"] == 0.25
    assert load["prefix_cache_hit_rate"] == 0.4
    assert 0 < load["requests_per_s"] <= 1
    assert load["generated_tokens_per_s"] == pytest.approx(5 * load["requests_per_s"], abs=0.01)


def test_rates_are_those_of_the_last_minute() -> None:
    now, count = 100.0, 0.0
    rates = RecentRates(lambda: (count, 2 * count), lambda: now)
    count = 10
    assert rates.read() == [10, 20], "nothing is divided by less than a second"
    for _ in range(10):
        now += 1
        rates.sample()
    assert rates.read() == [1, 2]
    for _ in range(round(WINDOW_SECONDS)):
        now += 1
        count += 3
        rates.sample()
    assert rates.read() == [3, 6], "what was before is forgotten"


async def test_the_command_says_by_its_exit_code_that_the_server_is_not_ready(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend(is_ready=False)
    command = (sys.executable, "-m", "engined.cli.main", "status", "--uds", frontend.path)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert process.returncode == 1
    assert "not ready (serving): the engine is loading the model" in out.decode()


async def test_rates_that_are_sampled_no_more_end_the_process(
    start_frontend: StartFrontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_broken(self: RecentRates) -> None:
        raise RuntimeError("a mistake of ours")

    frontend = await start_frontend()
    monkeypatch.setattr(RecentRates, "sample", is_broken)
    with pytest.raises(EnginedError, match="the task 'rates' of the frontend ended"):
        await asyncio.wait_for(asyncio.shield(frontend.task), 10)

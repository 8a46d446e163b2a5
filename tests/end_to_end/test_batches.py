"""Batches against a real daemon: through OpenAI's client, beside interactive requests, and through kill -9."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from openai.types import Batch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.end_to_end.byte_tokenizer import write_byte_tokenizer
from tests.end_to_end.server import Server, descendants, running, start, wait_until_gone, wait_until_ready

FLAGS = ("--kv-cache-memory", "32MiB", "--log-level", "warning", "--max-num-seqs", "16", "--num-threads", "1")
NUM_LINES = 1000


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=False, eos_token_id=None,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("models") / "tiny"
    LlamaForCausalLM(config).save_pretrained(folder)
    write_byte_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("batches")
    keys = ("--api-key", "one", "--api-key", "two")
    with running(tiny_model, folder, *FLAGS, *keys, "--data-dir", str(folder / "data")) as server:
        server.headers["Authorization"] = "Bearer one"
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with make_client(server) as client:
        yield client


def make_client(server: Server, api_key: str = "one") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=api_key, max_retries=0)


def completion(custom_id: str, **body: Any) -> dict[str, Any]:
    body = {"prompt": f"line {custom_id}", "max_tokens": 2, "temperature": 0, **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}


def as_jsonl(lines: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def submit(client: openai.OpenAI, lines: list[dict[str, Any]] | bytes, **fields: Any) -> Batch:
    content = lines if isinstance(lines, bytes) else as_jsonl(lines)
    file = client.files.create(file=("lines.jsonl", content), purpose="batch")
    fields = {"endpoint": "/v1/completions", "completion_window": "24h", "input_file_id": file.id, **fields}
    return client.batches.create(**fields)


def wait_for_end(client: openai.OpenAI, batch_id: str, timeout: float = 60.0) -> Batch:
    deadline = time.monotonic() + timeout
    while (batch := client.batches.retrieve(batch_id)).status not in ("completed", "failed", "cancelled", "expired"):
        assert time.monotonic() < deadline, batch
        time.sleep(0.05)
    return batch


def read_results(client: openai.OpenAI, file_id: str | None) -> dict[str, Any]:
    """By custom_id; each is there once."""
    if file_id is None:
        return {}
    return parse_results(client.files.content(file_id).text)


def parse_results(text: str) -> dict[str, Any]:
    results = [json.loads(line) for line in text.splitlines()]
    assert max(Counter(result["custom_id"] for result in results).values()) == 1
    return {result["custom_id"]: result for result in results}


def test_openais_helpers(client: openai.OpenAI, server: Server) -> None:
    content = as_jsonl([completion("good"), completion("bad", temperature=9), completion("stream", stream=True)])
    file = client.files.create(file=("höchst.jsonl", content), purpose="batch")
    assert (file.bytes, file.filename, file.purpose, file.object) == (len(content), "höchst.jsonl", "batch", "file")
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).content == content
    assert file.id in [item.id for item in client.files.list(purpose="batch", limit=1)]

    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="24h", metadata={"made": "here"}
    )
    assert batch.status == "validating" and batch.metadata == {"made": "here"} and batch.output_file_id is None
    batch = wait_for_end(client, batch.id)
    assert batch.status == "completed" and batch.request_counts is not None
    assert batch.request_counts.model_dump() == {"total": 3, "completed": 1, "failed": 2}
    assert batch.created_at <= (batch.in_progress_at or 0) <= (batch.finalizing_at or 0) <= (batch.completed_at or 0)
    assert batch.expires_at == batch.created_at + 24 * 3600

    [result] = read_results(client, batch.output_file_id).values()
    expected = server.complete(prompt="line good", max_tokens=2, temperature=0)
    assert result["custom_id"] == "good" and result["error"] is None and result["response"]["status_code"] == 200
    assert result["response"]["body"]["choices"] == expected["choices"]
    assert result["response"]["body"]["usage"]["total_tokens"] == expected["usage"]["total_tokens"]
    errors = read_results(client, batch.error_file_id)
    assert errors["bad"]["response"]["status_code"] == 400
    assert errors["bad"]["response"]["body"]["error"]["param"] == "temperature"
    assert errors["stream"]["response"] is None and "stream" in errors["stream"]["error"]["message"]

    assert batch.output_file_id is not None
    assert client.files.retrieve(batch.output_file_id).purpose == "batch_output"
    for file_id in (file.id, batch.output_file_id):
        assert client.files.delete(file_id).deleted
        with pytest.raises(openai.NotFoundError):
            client.files.content(file_id)


def test_every_route_that_the_model_has(client: openai.OpenAI) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": ["a", "b"], "n": 2, "max_tokens": 1},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
        "/v1/responses": {"input": "a"},
        "/v1/messages": {"max_tokens": 1, "messages": [{"role": "user", "content": "a"}]},
    }
    for url, body in bodies.items():
        batch = submit(client, [{"custom_id": "a", "method": "POST", "url": url, "body": body}], endpoint=url)
        batch = wait_for_end(client, batch.id)
        results = read_results(client, batch.output_file_id) | read_results(client, batch.error_file_id)
        answer = results["a"]["response"]["body"]
        if url == "/v1/completions":
            assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
        else:  # the model has no chat template, and each route says so in its own shape
            assert results["a"]["response"]["status_code"] == 400
            assert "chat template" in answer["error"]["message"]
            assert (answer.get("type") == "error") == (url == "/v1/messages")


def test_a_file_that_is_no_batch_fails_as_a_whole(client: openai.OpenAI) -> None:
    lines = [completion("a"), completion("a"), completion("b") | {"url": "/v1/embeddings"}]
    batch = wait_for_end(client, submit(client, as_jsonl(lines) + b"nonsense\n").id)
    assert batch.status == "failed" and batch.output_file_id is None and batch.errors is not None
    assert [(fault.line, fault.code) for fault in batch.errors.data or []] == [
        (2, "duplicate_custom_id"),
        (3, "invalid_url"),
        (4, "invalid_json_line"),
    ]
    empty = wait_for_end(client, submit(client, b"\n\n").id)
    assert empty.errors is not None and [fault.code for fault in empty.errors.data or []] == ["empty_file"]
    too_many = wait_for_end(client, submit(client, as_jsonl([completion("a")]) * 50_001).id)
    assert too_many.errors is not None and [fault.code for fault in too_many.errors.data or []] == ["too_many_lines"]


def test_lists_come_in_pages(client: openai.OpenAI) -> None:
    ids = [submit(client, [completion("a")]).id for _ in range(3)]
    for batch_id in ids:
        wait_for_end(client, batch_id)
    everything = [batch.id for batch in client.batches.list(limit=2)]
    assert set(ids) <= set(everything) and len(everything) == len(set(everything))
    page = client.batches.list(limit=1, after=everything[0])
    assert [batch.id for batch in page.data] == everything[1:2] and page.has_more


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/embeddings"}, "endpoint"),
        ({"endpoint": "/v1/files"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"input_file_id": "file-unknown"}, "input_file_id"),
        ({"metadata": {"k" * 65: "v"}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 3600}}, "output_expires_after"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_refusals(client: openai.OpenAI, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        submit(client, [completion("a")], **fields)
    assert caught.value.param == param


def test_bad_uploads(client: openai.OpenAI, server: Server) -> None:
    for purpose, form in (("assistants", {}), ("batch", {"more": "x"})):
        with pytest.raises(openai.BadRequestError):
            client.files.create(file=("a", b"{}"), purpose=purpose, extra_body=form)  # type: ignore[arg-type]
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve("..%2Fbatches")
    assert server.post("/v1/files", {"file": "x"})[0] == 415
    assert post_form(server, b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x--\r\n') == 400
    assert post_form(server, b"no form at all") == 400
    assert not list((server.uds.parent / "data" / "files").glob("*.tmp"))


def post_form(server: Server, body: bytes) -> int:
    command = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "--data-binary", "@-"]
    command += ["-H", "Content-Type: multipart/form-data; boundary=x", "-H", "x-api-key: one", f"{server.url}/v1/files"]
    return int(subprocess.run(command, input=body, capture_output=True, check=True).stdout)


def test_a_large_upload_goes_to_the_disk_and_a_too_large_one_nowhere(client: openai.OpenAI, server: Server) -> None:
    [frontend] = [pid for pid, title in server.processes().items() if "frontend" in title]

    def peak() -> int:
        lines = Path(f"/proc/{frontend}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

    before = peak()
    file = client.files.create(file=("large", b"x" * (100 << 20)), purpose="batch")
    assert file.bytes == 100 << 20 and peak() - before < 30 << 10, "kilobytes"
    client.files.delete(file.id)
    with pytest.raises((openai.APIStatusError, openai.APIConnectionError)):
        client.files.create(file=("larger", b"x" * ((200 << 20) + 1)), purpose="batch")
    assert not list((server.uds.parent / "data" / "files").glob("*.tmp"))


def test_a_cancelled_batch_keeps_what_it_has(client: openai.OpenAI) -> None:
    quick = [completion(f"quick {number}", max_tokens=1) for number in range(20)]
    slow = [completion(f"slow {number}", max_tokens=400) for number in range(200)]
    batch = submit(client, quick + slow)
    while (counts := client.batches.retrieve(batch.id).request_counts) is None or counts.completed < 20:
        time.sleep(0.01)
    with pytest.raises(openai.BadRequestError, match="cancel the batch first"):
        client.files.delete(batch.input_file_id)
    assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    batch = wait_for_end(client, batch.id, timeout=5.0)
    assert batch.status == "cancelled" and batch.request_counts is not None and batch.request_counts.total == 220
    results = read_results(client, batch.output_file_id)
    assert {line["custom_id"] for line in quick} <= set(results) and len(results) < 220
    assert batch.request_counts.completed == len(results)
    assert client.batches.cancel(batch.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError, match="can no longer be cancelled"):
        client.batches.cancel(wait_for_end(client, submit(client, quick).id).id)


def test_interactive_requests_do_not_wait_for_the_lines_of_a_batch(client: openai.OpenAI, server: Server) -> None:
    """All seats are taken by long lines. In the order of arrival, each request would wait until a line ends."""
    batch = submit(client, [completion(f"{number}", max_tokens=450) for number in range(100)])
    server.wait_for_metric("engined:num_requests_running", 16)

    def num_completed() -> int:
        counts = client.batches.retrieve(batch.id).request_counts
        assert counts is not None
        return counts.completed

    ended_meanwhile = []
    for _ in range(8):
        before = num_completed()
        assert server.complete(prompt="hello", max_tokens=3)["usage"]["completion_tokens"] == 3
        ended_meanwhile.append(num_completed() - before)
    print("lines that ended during each interactive request:", ended_meanwhile)
    assert ended_meanwhile.count(0) >= 5, "lines end anyway now and then"
    assert server.metric("engined:num_preemptions_total") >= 5, "each request took the seat of a line"
    assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    batch = wait_for_end(client, batch.id)
    assert batch.request_counts is not None and batch.request_counts.completed < 100


def test_files_belong_to_the_key_that_they_came_with(client: openai.OpenAI, server: Server) -> None:
    other = make_client(server, "two")
    batch = submit(client, [completion("a")])
    assert wait_for_end(client, batch.id).status == "completed"
    for call in (lambda: other.files.content(batch.input_file_id), lambda: other.batches.retrieve(batch.id)):
        with pytest.raises(openai.NotFoundError):
            call()
    assert list(other.files.list()) == [] and list(other.batches.list()) == []
    with pytest.raises(openai.BadRequestError):
        submit(other, [completion("a")], input_file_id=batch.input_file_id)
    for path in ("/v1/files", "/v1/batches", f"/v1/files/{batch.input_file_id}/content"):
        with pytest.raises(openai.AuthenticationError):
            make_client(server, "three").get(path.removeprefix("/v1"), cast_to=object)


def test_a_batch_survives_kill_9_of_the_daemon(tiny_model: Path, tmp_path: Path) -> None:
    flags = (*FLAGS, "--data-dir", str(tmp_path / "data"))
    killed = start(tiny_model, tmp_path, *flags)
    try:
        wait_until_ready(killed)
        client = make_client(killed)
        batch = submit(client, [completion(str(number)) for number in range(NUM_LINES)])
        while (counts := client.batches.retrieve(batch.id).request_counts) is None or counts.completed < 300:
            time.sleep(0.01)
    finally:
        pids = descendants(killed.pid)
        os.kill(killed.pid, signal.SIGKILL)
        killed.process.wait()
    wait_until_gone(pids, 5.0)
    [journal] = tmp_path.glob("data/batches/*/output.jsonl")
    num_before = journal.read_bytes().count(b"\n")
    assert 300 <= num_before < NUM_LINES, "killed in the middle"
    with journal.open("ab") as file:
        file.write(b'{"id":"batch_req_99999","cust')  # and in the middle of a line

    with running(tiny_model, tmp_path, *flags) as server:
        client = make_client(server)
        batch = wait_for_end(client, batch.id)
        assert batch.status == "completed" and batch.request_counts is not None
        assert batch.request_counts.model_dump() == {"total": NUM_LINES, "completed": NUM_LINES, "failed": 0}
        text = client.files.content(batch.output_file_id or "").text
        results = parse_results(text)
        assert set(results) == {str(number) for number in range(NUM_LINES)}
        assert all(result["response"]["status_code"] == 200 for result in results.values())
        print(f"{num_before} lines before the kill, {NUM_LINES - num_before} after it")
        assert not list(tmp_path.glob("data/batches/*/*.jsonl"))


def run_batch(folder: Path, *flags: str) -> "subprocess.Popen[str]":
    """`engined run-batch`, started; it has no terminal, so it shows no bar."""
    arguments = ["run-batch", "-i", str(folder / "in.jsonl"), "-o", str(folder / "out.jsonl"), *flags]
    environment = os.environ | {"XDG_RUNTIME_DIR": str(folder), "HF_HUB_OFFLINE": "1"}
    engined = str(Path(sys.executable).with_name("engined"))
    return subprocess.Popen(
        [engined, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def wait_for_lines(path: Path, num_lines: int, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 60
    while not path.exists() or path.read_bytes().count(b"\n") < num_lines:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.01)


def test_run_batch_survives_kill_9(tiny_model: Path, tmp_path: Path) -> None:
    flags = (str(tiny_model), "--kv-cache-memory", "32MiB", "--max-num-seqs", "16", "--num-threads", "1")
    good = as_jsonl([completion(str(number)) for number in range(NUM_LINES - 2)])
    (tmp_path / "in.jsonl").write_bytes(b"nonsense\n" + good + as_jsonl([completion("bad", temperature=9)]))
    output = tmp_path / "out.jsonl"

    killed = run_batch(tmp_path, *flags)
    wait_for_lines(output, 300, killed)
    pids = descendants(killed.pid)
    assert len(pids) == 4, "the command, a supervisor, a frontend and a core"
    killed.kill()
    killed.communicate()
    wait_until_gone(pids, 5.0)
    num_before = output.read_bytes().count(b"\n")
    assert num_before < NUM_LINES, "killed in the middle"
    with output.open("ab") as file:
        file.write(b'{"id":"batch_req_99999","cust')  # and in the middle of a line

    last = run_batch(tmp_path, *flags)
    summary, errors = last.communicate(timeout=60)
    assert last.returncode == 0, errors
    assert f"1000 lines: 998 completed, 2 failed, {num_before} of them in earlier runs" in summary
    assert "lines" not in errors and "%|" not in errors, "no bar where there is no terminal"
    results = parse_results(output.read_text())
    assert set(results) == {None, "bad", *(str(number) for number in range(NUM_LINES - 2))}
    assert results[None]["error"]["code"] == "invalid_json_line" and results[None]["id"] == "batch_req_1"
    assert results["bad"]["response"]["status_code"] == 400 and "temperature" in results["bad"]["error"]["message"]
    assert results["7"]["response"]["body"]["usage"]["completion_tokens"] == 2
    print(f"{num_before} lines before the kill, {NUM_LINES - num_before} after it")


def test_run_batch_asks_a_running_server_and_heeds_ctrl_c(tmp_path: Path, server: Server) -> None:
    lines = [completion(str(number), max_tokens=1 if number < 50 else 300) for number in range(150)]
    (tmp_path / "in.jsonl").write_bytes(as_jsonl(lines))
    output = tmp_path / "out.jsonl"
    stopped = run_batch(tmp_path, "--url", f"unix:{server.uds}", "--api-key", "one")
    wait_for_lines(output, 40, stopped)
    stopped.send_signal(signal.SIGINT)
    _, errors = stopped.communicate(timeout=10)
    num_before = output.read_bytes().count(b"\n")
    assert stopped.returncode == 130 and f"stopped after {num_before} of 150 lines; run it again" in errors
    assert 40 <= num_before < 150
    server.wait_for_metric("engined:num_requests_running", 0)

    (tmp_path / "in.jsonl").write_bytes(as_jsonl(lines[:60]))
    done = run_batch(tmp_path, "--url", f"{server.url}/v1", "--api-key", "one")
    summary, errors = done.communicate(timeout=30)
    assert done.returncode == 0 and "0 failed" in summary, errors
    assert {str(number) for number in range(60)} <= set(parse_results(output.read_text()))


def test_run_batch_ends_at_once_if_no_line_could_be_answered(tmp_path: Path, server: Server) -> None:
    (tmp_path / "in.jsonl").write_bytes(as_jsonl([completion("a")]))
    refused = run_batch(tmp_path, "--url", server.url, "--api-key", "wrong")
    away = run_batch(tmp_path, "--url", "http://127.0.0.1:1", "-o", str(tmp_path / "other.jsonl"))
    assert "give the right one with --api-key" in refused.communicate(timeout=30)[1]
    assert "no engined server answers at http://127.0.0.1:1" in away.communicate(timeout=30)[1]
    assert (refused.returncode, away.returncode) == (1, 69) and (tmp_path / "out.jsonl").read_bytes() == b""

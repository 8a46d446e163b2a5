"""The runner: bounded, patient, resumable; in front of answers that are made up."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engined.batch import runner as runner_module
from engined.batch.journal import Journal
from engined.batch.request_line import BATCH_URLS, RequestLine, read_lines
from engined.batch.result_line import ErrorPart, LineAnswer
from engined.batch.runner import MAX_FAILURES, Answer, BatchRunner, Unanswered, refuse_rest
from engined.errors import BatchError


@pytest.fixture(autouse=True)
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "FIRST_DELAY_SECONDS", 0.001)
    monkeypatch.setattr(runner_module, "LONGEST_DELAY_SECONDS", 0.01)


def write_input(folder: Path, custom_ids: list[str], **body: Any) -> Path:
    path = folder / "in.jsonl"
    lines = [
        {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body} for custom_id in custom_ids
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def results(folder: Path) -> dict[str, Any]:
    lines = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert max(Counter(line["custom_id"] for line in lines).values(), default=1) == 1
    return {line["custom_id"]: line for line in lines}


async def run(
    folder: Path,
    source: Path,
    answer: Answer,
    *,
    num_seats: int = 4,
    patience: float | None = None,
    on_start: Callable[[BatchRunner], None] = lambda runner: None,
) -> None:
    with Journal(folder / "out.jsonl") as journal:
        runner = BatchRunner(journal, answer, BATCH_URLS, asyncio.Semaphore(num_seats), patience=patience)
        on_start(runner)
        await runner.run(read_lines(source))


def ok(line: RequestLine) -> LineAnswer:
    return LineAnswer(status=200, request_id="r", body={"said": line.custom_id})


async def test_lines_are_answered_side_by_side_but_not_too_many(tmp_path: Path) -> None:
    now = most = 0

    async def answer(line: RequestLine) -> LineAnswer:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.001 * (len(line.custom_id) % 3))
        now -= 1
        return ok(line)

    source = write_input(tmp_path, [f"{number:b}" for number in range(50)])
    await run(tmp_path, source, answer)
    assert most == 4
    assert {name: line["response"]["body"]["said"] for name, line in results(tmp_path).items()} == {
        f"{number:b}": f"{number:b}" for number in range(50)
    }


async def test_bad_lines_and_refusals_are_results_and_stop_nothing(tmp_path: Path) -> None:
    async def answer(line: RequestLine) -> LineAnswer:
        error = {"error": {"message": "no", "code": "bad"}}
        return LineAnswer(status=400, request_id="r", body=error) if line.custom_id == "bad" else ok(line)

    source = write_input(tmp_path, ["good", "bad"])
    source.write_text("nonsense\n" + source.read_text() + '{"custom_id": "torn"')
    for _ in range(2):  # the second time nothing is left to do
        await run(tmp_path, source, answer)
        lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
        codes = {line["id"]: line["error"] and line["error"]["code"] for line in lines}
        assert len(lines) == 4 and codes == {
            "batch_req_1": "invalid_json_line",
            "batch_req_2": None,
            "batch_req_3": "bad",
            "batch_req_4": "invalid_json_line",
        }


async def test_what_passes_is_tried_again_until_it_has_passed(tmp_path: Path) -> None:
    attempts: Counter[str] = Counter()

    async def answer(line: RequestLine) -> LineAnswer:
        attempts[line.custom_id] += 1
        if attempts[line.custom_id] <= 6:
            if line.custom_id == "refused":
                raise Unanswered("connection refused", was_sent=False)
            return LineAnswer(status=int(line.custom_id), request_id="r", body={})
        return ok(line)

    await run(tmp_path, write_input(tmp_path, ["503", "429", "refused"]), answer)
    assert attempts == {"503": 7, "429": 7, "refused": 7}
    assert all(line["error"] is None for line in results(tmp_path).values())


async def test_a_request_that_fails_or_kills_the_server_each_time_is_given_up(tmp_path: Path) -> None:
    attempts: Counter[str] = Counter()

    async def answer(line: RequestLine) -> LineAnswer:
        attempts[line.custom_id] += 1
        if line.custom_id == "deadly":
            raise Unanswered("the server closed the connection", was_sent=True)
        return LineAnswer(status=500, request_id="r", body={"error": {"message": "NaN"}})

    await run(tmp_path, write_input(tmp_path, ["deadly", "failing"]), answer)
    assert attempts == {"deadly": MAX_FAILURES, "failing": MAX_FAILURES}
    lines = results(tmp_path)
    assert lines["deadly"]["response"] is None and lines["deadly"]["error"]["code"] == "no_answer"
    assert lines["failing"]["response"]["status_code"] == 500 and lines["failing"]["error"]["message"] == "NaN"


async def test_patience_ends_when_nobody_answers_at_all(tmp_path: Path) -> None:
    async def answer(line: RequestLine) -> LineAnswer:
        raise Unanswered("connection refused", was_sent=False)

    with pytest.raises(BatchError, match=r"no line was answered .*connection refused"):
        await run(tmp_path, write_input(tmp_path, ["a", "b"]), answer, patience=0.05)
    assert results(tmp_path) == {}


async def test_a_stream_is_refused_before_it_is_asked_for(tmp_path: Path) -> None:
    async def answer(line: RequestLine) -> LineAnswer:
        raise AssertionError("asked")

    await run(tmp_path, write_input(tmp_path, ["a"], stream=True), answer)
    assert "stream" in results(tmp_path)["a"]["error"]["message"]


async def test_a_cancelled_run_is_resumed_without_repeating_anything(tmp_path: Path) -> None:
    asked: Counter[str] = Counter()

    async def answer(line: RequestLine) -> LineAnswer:
        asked[line.custom_id] += 1
        await asyncio.sleep(0.002)
        return ok(line)

    source = write_input(tmp_path, [str(number) for number in range(60)])
    task = asyncio.create_task(run(tmp_path, source, answer))
    while len(asked) < 30:
        await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    done = set(results(tmp_path))
    assert 0 < len(done) < 60
    await run(tmp_path, source, answer)
    assert len(results(tmp_path)) == 60 and all(asked[custom_id] == 1 for custom_id in done)


async def test_stopping_finishes_what_is_under_way_and_begins_nothing(tmp_path: Path) -> None:
    begun: list[str] = []
    runners: list[BatchRunner] = []

    async def answer(line: RequestLine) -> LineAnswer:
        begun.append(line.custom_id)
        if len(begun) == 10:
            runners[0].stop()
        await asyncio.sleep(0.001)
        return ok(line)

    source = write_input(tmp_path, [str(number) for number in range(60)])
    await run(tmp_path, source, answer, on_start=runners.append)
    assert 10 <= len(begun) < 15 and list(results(tmp_path)) == begun


async def test_stopping_does_not_wait_for_a_server_that_is_away(tmp_path: Path) -> None:
    async def answer(line: RequestLine) -> LineAnswer:
        runners[0].stop()
        return LineAnswer(status=503, request_id="r", body={})

    runners: list[BatchRunner] = []
    await run(tmp_path, write_input(tmp_path, ["a", "b"]), answer, on_start=runners.append)
    assert results(tmp_path) == {}


async def test_an_output_that_cannot_be_written_ends_the_run(tmp_path: Path) -> None:
    async def answer(line: RequestLine) -> LineAnswer:
        return ok(line)

    with Journal(tmp_path / "out.jsonl") as journal:
        runner = BatchRunner(journal, answer, BATCH_URLS, asyncio.Semaphore(2), on_result=_raise_disk_full)
        with pytest.raises(OSError, match="disk full"):
            await runner.run(read_lines(write_input(tmp_path, ["a", "b", "c"])))


async def test_the_rest_can_be_refused(tmp_path: Path) -> None:
    source = write_input(tmp_path, ["a", "b"])
    source.write_text(source.read_text() + "nonsense\n")
    with Journal(tmp_path / "out.jsonl") as journal:
        for _ in range(2):
            fault = ErrorPart(code="batch_expired", message="too late")
            await refuse_rest(journal, read_lines(source), BATCH_URLS, fault)
        assert journal.num_failed == 3


def _raise_disk_full() -> None:
    raise OSError("disk full")

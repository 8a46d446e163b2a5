"""The output of a batch as its journal: nothing is lost, nothing is there twice, and nothing else is touched."""

import json
from pathlib import Path

import pytest

from engined.batch.journal import Journal
from engined.batch.result_line import ErrorPart, LineAnswer, ResultLine, answered, encode_result, refused
from engined.errors import BatchError


def good(number: int, custom_id: str) -> ResultLine:
    return answered(number, custom_id, LineAnswer(status=200, request_id=f"req-{number}", body={"text": "höchst\n"}))


def bad(number: int, custom_id: str | None) -> ResultLine:
    return refused(number, custom_id, ErrorPart(code="invalid_line", message="no"))


def test_a_result_has_openais_shape(tmp_path: Path) -> None:
    error = {"error": {"message": "top_p is out", "code": "out_of_range", "type": "invalid_request_error"}}
    with Journal(tmp_path / "out.jsonl") as journal:
        journal.write(good(7, "a"))
        journal.write(answered(8, "b", LineAnswer(status=400, request_id="req-8", body=error)))
        journal.write(bad(9, None))
        assert (journal.num_completed, journal.num_failed) == (1, 2)
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == [
        {
            "id": "batch_req_7",
            "custom_id": "a",
            "response": {"status_code": 200, "request_id": "req-7", "body": {"text": "höchst\n"}},
            "error": None,
        },
        {
            "id": "batch_req_8",
            "custom_id": "b",
            "response": {"status_code": 400, "request_id": "req-8", "body": error},
            "error": {"code": "out_of_range", "message": "top_p is out"},
        },
        {
            "id": "batch_req_9",
            "custom_id": None,
            "response": None,
            "error": {"code": "invalid_line", "message": "no"},
        },
    ]


def test_it_goes_on_where_it_was_cut_off_at_every_byte(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    lines = [encode_result(result) for result in (good(1, "a"), bad(2, None), good(3, "c"))]
    whole = b"".join(lines)
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        with Journal(path) as journal:
            num_whole = sum(length >= sum(map(len, lines[: count + 1])) for count in range(3))
            assert journal.num_finished == num_whole
            assert path.read_bytes() == b"".join(lines[:num_whole])
            assert [journal.has(1, "a"), journal.has(2, None), journal.has(3, "c")] == [
                num_whole > index for index in range(3)
            ]
            for result in (good(1, "a"), bad(2, None), good(3, "c")):
                if not journal.has(result.number or 0, result.custom_id):
                    journal.write(result)
        assert path.read_bytes() == whole


def test_zeros_that_a_power_failure_left_are_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(encode_result(good(1, "a")) + b"\0" * 5000)
    with Journal(path) as journal:
        assert journal.num_finished == 1
    assert path.read_bytes() == encode_result(good(1, "a"))


@pytest.mark.parametrize(
    "content",
    [b"my notes", b"my notes\n", b'{"id": 1}\n', b'{"id":"batch_req_1"}\n' + encode_result(good(2, "b")), b"\xff\xfe"],
)
def test_a_file_that_holds_something_else_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(content)
    with pytest.raises(BatchError, match=r"line 1 of .*out\.jsonl is no result"):
        Journal(path)
    assert path.read_bytes() == content


def test_two_runs_cannot_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with Journal(path), pytest.raises(BatchError, match="another batch is writing"):
        Journal(path)
    Journal(path).close()


def test_only_regular_files_can_be_resumed() -> None:
    with pytest.raises(BatchError, match="not a regular file"):
        Journal(Path("/dev/null"))


def test_failures_can_have_a_file_of_their_own(tmp_path: Path) -> None:
    paths = tmp_path / "out.jsonl", tmp_path / "errors.jsonl"
    with Journal(*paths) as journal:
        journal.write(good(1, "a"))
        journal.write(bad(2, "b"))
        journal.sync()
    assert paths[0].read_bytes() == encode_result(good(1, "a")) and paths[1].read_bytes() == encode_result(bad(2, "b"))
    with Journal(*paths) as journal:
        assert journal.has(1, "a") and journal.has(2, "b") and not journal.has(3, "c")


def test_a_number_means_nothing_where_there_is_a_custom_id(tmp_path: Path) -> None:
    """Lines may have been added to the input, or moved."""
    with Journal(tmp_path / "out.jsonl") as journal:
        journal.write(good(1, "a"))
        assert journal.has(5, "a") and not journal.has(1, "b") and not journal.has(1, None)

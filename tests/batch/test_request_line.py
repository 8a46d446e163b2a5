"""Lines of a batch, and what is wrong with them."""

import json
from pathlib import Path
from typing import Any

import pytest

from engined.batch.request_line import (
    BATCH_URLS,
    MAX_LINE_BYTES,
    LineFault,
    asks_for_stream,
    parse_line,
    read_lines,
)
from engined.batch.survey import MAX_FAULTS, survey


def line(custom_id: Any = "a", **changes: Any) -> bytes:
    fields = {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}, **changes}
    return json.dumps({name: value for name, value in fields.items() if value is not ...}).encode()


def test_the_body_is_left_as_it_is() -> None:
    request = parse_line(
        b'{"url":"/v1/completions","custom_id":"\xc3\xb6","method":"POST", "body": {"n" : 1.0} }', BATCH_URLS
    )
    assert request.custom_id == "ö" and bytes(request.body) == b'{"n" : 1.0}'


@pytest.mark.parametrize(
    ("data", "code", "custom_id"),
    [
        (b"{", "invalid_json_line", None),
        (b"\xff", "invalid_json_line", None),
        (b'{"custom_id":"\\ud800"}', "invalid_json_line", None),
        (b'{"body":' + b"[" * 100_000, "invalid_json_line", None),
        (b"[]", "invalid_line", None),
        (b'{"custom_id":"a"}', "invalid_line", "a"),
        (line(...), "invalid_line", None),
        (line(5), "invalid_line", None),
        (line("a", more=1), "invalid_line", "a"),
        (line(""), "invalid_custom_id", None),
        (line("a", method="GET"), "invalid_method", "a"),
        (line("a", url="/v1/files"), "invalid_url", "a"),
        (line("a", body=[1]), "invalid_body", "a"),
        (line("a", body={"prompt": "x" * MAX_LINE_BYTES}), "line_too_long", None),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_faults(data: bytes, code: str, custom_id: str | None) -> None:
    with pytest.raises(LineFault) as caught:
        parse_line(data, BATCH_URLS)
    assert (caught.value.code, caught.value.custom_id) == (code, custom_id)


def test_streams_are_noticed() -> None:
    def parse(body: dict[str, Any]) -> bool:
        return asks_for_stream(parse_line(line(body=body), BATCH_URLS))

    assert parse({"stream": True}) and not parse({"stream": False}) and not parse({}) and not parse({"stream": None})


def test_reading_skips_blank_lines_but_counts_them_and_cuts_what_is_too_long(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\xef\xbb\xbf{}\r\n\n  \n[]\n" + b"x" * (2 * MAX_LINE_BYTES + 5) + b"\nlast")
    read = list(read_lines(path))
    assert [(number, data[:4]) for number, data in read] == [(1, b"{}"), (4, b"[]"), (5, b"xxxx"), (6, b"last")]
    assert len(read[2][1]) == MAX_LINE_BYTES + 1


def test_a_survey_counts_and_finds_duplicates_also_of_faulty_lines(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    lines = [line("a"), line("b", method="GET"), b"", line("b"), line("a"), b"nonsense"]
    path.write_bytes(b"\n".join(lines))
    found = survey(path, BATCH_URLS)
    assert found.num_lines == 5
    assert [(number, fault.code) for number, fault in found.faults] == [
        (2, "invalid_method"),
        (4, "duplicate_custom_id"),
        (5, "duplicate_custom_id"),
        (6, "invalid_json_line"),
    ]
    assert found.duplicate is not None and found.duplicate[0] == 4 and "'b' stands in line 2" in str(found.duplicate[1])


def test_a_survey_keeps_only_the_first_faults(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"nonsense\n" * 1000)
    found = survey(path, BATCH_URLS)
    assert (found.num_lines, len(found.faults), found.duplicate) == (1000, MAX_FAULTS, None)

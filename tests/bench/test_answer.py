"""What the client makes of the bytes that came, however they were cut, and of answers that are none."""

import pytest

from engined.bench.answer import read_answer, read_json
from engined.bench.exchange import Exchange

EVENTS = [
    b'data: {"choices":[{"text":"a","token_ids":[7]}]}\n\n',
    b": keep-alive\n\n",
    b'data: {"choices":[{"text":"b","token_ids":[8]}],"usage":null}\n\n',
    b'data: {"choices":[],"usage":{"completion_tokens":3}}\n\n',
    b"data: [DONE]\n\n",
]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def chunked(events: list[bytes]) -> bytes:
    chunks = (b"%x\r\n%b\r\n" % (len(event), event) for event in events)
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(chunks) + b"0\r\n\r\n"


def received(data: bytes, size: int) -> Exchange:
    """The bytes in pieces of a size, each a second after the one before it."""
    pieces = [data[begin : begin + size] for begin in range(0, len(data), size)]
    reads = [(float(second), piece) for second, piece in enumerate(pieces, start=1)]
    return Exchange(started=0.0, reads=reads, ended=float(len(reads)))


@pytest.mark.parametrize("size", [1, 3, 17, 10_000])
@pytest.mark.parametrize("data", [chunked(EVENTS), HEAD + b"\r\n" + b"".join(EVENTS)], ids=["chunked", "to the end"])
def test_a_stream_reads_the_same_however_it_is_cut(data: bytes, size: int) -> None:
    answer = read_answer(received(data, size))
    assert (answer.error, answer.text, answer.token_ids, answer.num_tokens) == (None, "ab", [7, 8], 3)


def test_events_have_the_time_at_which_they_were_whole() -> None:
    head, first, comment, second, *rest = (HEAD + b"\r\n", *EVENTS)
    pieces = [head + first[:5], first[5:] + comment, second + rest[0], rest[1]]
    answer = read_answer(Exchange(started=1.0, reads=list(zip((2.0, 3.0, 5.0, 9.0), pieces, strict=True)), ended=9.5))
    assert (answer.ttft, answer.gaps, answer.ended) == (2.0, [2.0], 9.0)


def test_the_first_event_of_a_chat_is_not_its_first_token() -> None:
    events = [
        b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n',
        b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n',
        b"data: [DONE]\n\n",
    ]
    reads = [(float(second), data) for second, data in enumerate([HEAD + b"\r\n", *events])]
    assert read_answer(Exchange(started=0.0, reads=reads, ended=4.0)).token_times == [2.0]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", "the server closed the connection without an answer"),
        (b"SSH-2.0\r\n\r\n", "not an answer of an OpenAI server"),
        (b'HTTP/1.1 400 Bad\r\n\r\n{"error":{"message":"too\\nlong"}}', "status 400: too long"),
        (b"HTTP/1.1 502 Bad\r\n\r\n<html>", "status 502: <html>"),
        (HEAD + b"\r\n" + b"".join(EVENTS[:3]), "the stream ended without [DONE]"),
        (HEAD + b"\r\n" + EVENTS[0] + b'data: {"error":{"message":"engine died"}}\n\n', "engine died"),
        (HEAD + b"\r\ndata: [DONE]\n\n", "the answer has no tokens"),
    ],
)
def test_an_answer_that_is_none_says_why(data: bytes, error: str) -> None:
    answer = read_answer(received(data, 10_000))
    assert answer.error is not None and error in answer.error


def test_a_body_of_an_error_is_no_json_answer() -> None:
    assert read_json(received(b'HTTP/1.1 200 OK\r\n\r\n{"a":1}', 4)) == {"a": 1}
    with pytest.raises(ValueError, match="status 503: loading"):
        read_json(received(b'HTTP/1.1 503 No\r\n\r\n{"error":{"message":"loading"}}', 9))

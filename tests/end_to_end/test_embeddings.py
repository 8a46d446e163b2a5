"""/v1/embeddings with a real encoder: equal to transformers, whatever the form of the input and of the answer."""

import json
import math
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from tests.end_to_end.server import Server, running

ROUTE = "/v1/embeddings"
TOLERANCE = 1e-4
TEXTS = [
    "The capital of France is Paris.",
    "A sentence about something else entirely: how bread is baked, with flour, water, salt and time.",
    "short",
    "Ünïcödé, 你好, emoji 👩‍👩‍👧 and numbers 123,456.78",
    "word " * 200,
]


class Reference:
    """The model in transformers: mean of the last states, scaled to length 1, one text at a time."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def embed(self, text: str, **options: Any) -> list[float]:
        encoded = self.tokenizer(text, return_tensors="pt", **options)
        mean = self._model(**encoded).last_hidden_state[0].mean(dim=0)
        vector: list[float] = (mean / mean.norm()).tolist()
        return vector


@pytest.fixture(scope="module")
def reference(minilm: Path) -> Reference:
    return Reference(minilm)


@pytest.fixture
def client(minilm_server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{minilm_server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def embed(server: Server, **fields: Any) -> dict[str, Any]:
    status, body = server.post(ROUTE, fields)
    assert status == 200, body
    assert isinstance(body, dict)
    return body


def vectors(body: dict[str, Any]) -> list[list[float]]:
    return [item["embedding"] for item in body["data"]]


def assert_close(first: list[float], second: list[float], tolerance: float = TOLERANCE) -> None:
    assert len(first) == len(second)
    assert max(abs(a - b) for a, b in zip(first, second, strict=True)) <= tolerance


def test_vectors_equal_transformers(minilm_server: Server, reference: Reference) -> None:
    body = embed(minilm_server, input=TEXTS)
    for text, vector in zip(TEXTS, vectors(body), strict=True):
        assert_close(vector, reference.embed(text))
        assert math.isclose(math.hypot(*vector), 1.0, rel_tol=1e-5)
    num_tokens = sum(len(reference.tokenizer(text).input_ids) for text in TEXTS)
    assert body["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    assert body["object"] == "list" and body["id"].startswith("embd-") and body["model"] == "all-minilm-l6-v2"
    assert [(item["object"], item["index"]) for item in body["data"]] == [("embedding", i) for i in range(len(TEXTS))]


def test_openai_client_reads_base64_and_floats_alike(client: openai.OpenAI) -> None:
    as_default = client.embeddings.create(model="all-minilm-l6-v2", input=TEXTS)  # the client asks for base64
    as_floats = client.embeddings.create(model="all-minilm-l6-v2", input=TEXTS, encoding_format="float")
    assert [item.embedding for item in as_default.data] == [item.embedding for item in as_floats.data]
    assert as_default.usage == as_floats.usage


def test_a_list_keeps_its_order_and_a_text_its_vector(minilm_server: Server) -> None:
    together = vectors(embed(minilm_server, input=TEXTS))
    backwards = vectors(embed(minilm_server, input=TEXTS[::-1]))
    for text, vector, other in zip(TEXTS, together, backwards[::-1], strict=True):
        [alone] = vectors(embed(minilm_server, input=text))
        assert_close(vector, other, 1e-6)
        assert_close(vector, alone, 1e-6)


def test_token_ids_equal_the_text(minilm_server: Server, reference: Reference) -> None:
    ids = [reference.tokenizer(text).input_ids for text in TEXTS[:3]]
    from_texts = embed(minilm_server, input=TEXTS[:3])
    from_ids = embed(minilm_server, input=ids)
    for first, second in zip(vectors(from_texts), vectors(from_ids), strict=True):
        assert_close(first, second, 1e-6)
    assert from_texts["usage"] == from_ids["usage"]
    [single] = vectors(embed(minilm_server, input=ids[1]))
    assert_close(single, vectors(from_texts)[1], 1e-6)


def test_truncation_equals_transformers(minilm_server: Server, reference: Reference) -> None:
    long_text = "The sea is wide and deep. " * 500
    for limit, max_length in ((16, 16), (-1, 256)):
        body = embed(minilm_server, input=long_text, truncate_prompt_tokens=limit)
        assert body["usage"]["prompt_tokens"] == max_length
        assert_close(vectors(body)[0], reference.embed(long_text, truncation=True, max_length=max_length))


def test_without_special_tokens_or_scaling(minilm_server: Server, reference: Reference) -> None:
    [bare] = vectors(embed(minilm_server, input=TEXTS[0], add_special_tokens=False))
    assert_close(bare, reference.embed(TEXTS[0], add_special_tokens=False))
    [scaled], [unscaled] = (
        vectors(embed(minilm_server, input=TEXTS[0], use_activation=flag)) for flag in (True, False)
    )
    length = math.hypot(*unscaled)
    assert abs(length - 1.0) > 0.01
    assert_close([value / length for value in unscaled], scaled, 1e-6)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": ["a", 1]}, "input"),
        ({"input": [[1, 2], []]}, "input[1]"),
        ({"input": [30522]}, "input"),
        ({"input": [-1]}, "input"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "word " * 300}, "input"),
        ({"input": ["a", "b " * 100_000]}, "input[1]"),
        ({"input": [[7] * 200] * 1501}, "input"),
        ({"input": "a", "encoding_format": "bytes"}, "encoding_format"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": 385}, "dimensions"),
        ({"input": "a", "dimensions": 128}, "dimensions"),
        ({"input": "a", "dimensions": True}, "dimensions"),
        ({"input": "a", "truncate_prompt_tokens": 2}, "truncate_prompt_tokens"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": "a", "priority": 1}, "priority"),
        ({"input": "a", "cache_salt": "a/b"}, "cache_salt"),
        ({"input": "a", "request_id": ""}, "request_id"),
        ({"input": "a", "messages": []}, "messages"),
        ({"input": "a", "embed_dtype": "float16"}, "embed_dtype"),
        ({"input": "a", "dimension": 4}, "dimension"),
    ],
)
def test_faults_are_named(minilm_server: Server, fields: dict[str, Any], param: str) -> None:
    status, body = minilm_server.post(ROUTE, fields)
    assert status == 400, body
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["param"] == param and body["error"]["type"] == "invalid_request_error"


def test_dimensions_where_the_model_was_trained_for_them(
    minilm: Path, reference: Reference, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("matryoshka") / "model"
    shutil.copytree(minilm, folder)
    config = json.loads((folder / "config.json").read_text()) | {"matryoshka_dimensions": [64, 128]}
    (folder / "config.json").write_text(json.dumps(config))
    with running(folder, tmp_path_factory.mktemp("dimensions"), "--dtype", "float32") as server:
        [vector] = vectors(embed(server, input=TEXTS[0], dimensions=64))
        whole = reference.embed(TEXTS[0])[:64]
        length = math.hypot(*whole)
        assert_close(vector, [value / length for value in whole])
        [vector] = vectors(embed(server, input=TEXTS[0], dimensions=384))
        assert_close(vector, reference.embed(TEXTS[0]))
        status, body = server.post(ROUTE, {"input": "a", "dimensions": 65})
        assert status == 400 and "64, 128" in body["error"]["message"], body


def test_fields_that_change_nothing(minilm_server: Server) -> None:
    [plain] = vectors(embed(minilm_server, input="a"))
    fields = {"dimensions": 384, "user": "me", "embed_dtype": "float32", "endianness": "little", "padding": False}
    [vector] = vectors(embed(minilm_server, input="a", **fields))
    assert len(vector) == 384 and vector == plain


@pytest.mark.parametrize(
    ("route", "fields"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]}),
        ("/v1/completions", {"prompt": "Hello"}),
    ],
)
def test_embedding_model_does_not_generate(minilm_server: Server, route: str, fields: dict[str, Any]) -> None:
    status, body = minilm_server.post(route, fields)
    assert status == 400 and route in body["error"]["message"] and "/v1/embeddings" in body["error"]["message"], body


@pytest.mark.parametrize(
    ("route", "fields"),
    [
        (ROUTE, {"input": "Hello"}),
        ("/score", {"text_1": "a", "text_2": "b"}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
    ],
)
def test_generating_model_does_not_embed(default_server: Server, route: str, fields: dict[str, Any]) -> None:
    status, body = default_server.post(route, fields)
    assert status == 400 and "/v1/chat/completions" in body["error"]["message"], body


def test_unknown_model(minilm_server: Server) -> None:
    status, body = minilm_server.post(ROUTE, {"model": "nobody", "input": "a"})
    assert (status, body["error"]["code"]) == (404, "model_not_found")


def test_a_client_that_hangs_up_frees_the_engine(minilm_server: Server) -> None:
    aborted = minilm_server.metric("engined:request_success_total", finished_reason="abort")
    body = json.dumps({"input": [[7] * 256] * 1000}).encode()
    host, port = minilm_server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST {ROUTE} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        deadline = time.monotonic() + 10
        while minilm_server.metric("engined:num_requests_waiting") == 0:
            assert time.monotonic() < deadline
    minilm_server.wait_for_metric("engined:num_requests_running", 0)
    minilm_server.wait_for_metric("engined:num_requests_waiting", 0)
    assert minilm_server.metric("engined:request_success_total", finished_reason="abort") > aborted + 100
    assert "client_disconnect; 256000 prompt tokens in 1000 sequences" in minilm_server.log()

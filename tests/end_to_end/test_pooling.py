"""Pooling models behind a real server: an encoder as its users meet it, and a decoder pooled by its last token.

The routes and their fields are tested in the tests of /v1/embeddings; here it is what the engine computes that counts.
"""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModel, AutoTokenizer, Qwen3Config

from tests.end_to_end.server import Server, running, start
from tests.end_to_end.test_exactness import write_byte_tokenizer
from tests.models.encoders import write_pooling
from tests.models.families import SIZES, make_reference, save

TEXTS = ["Two", "The quick brown fox jumps over the lazy dog.", "word " * 200, "Ein Satz über Bäume."]


def embed(server: Server, inputs: Any) -> torch.Tensor:
    """[len(inputs), hidden_size]"""
    status, body = server.post("/v1/embeddings", {"input": inputs})
    assert status == 200, body
    return torch.tensor([item["embedding"] for item in body["data"]])


@pytest.fixture(scope="module")
def expected(minilm: Path) -> torch.Tensor:
    """What transformers makes of the texts, one at a time."""
    tokenizer, model = AutoTokenizer.from_pretrained(minilm), AutoModel.from_pretrained(minilm).eval()
    with torch.inference_mode():
        states = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0) for text in TEXTS]
    return F.normalize(torch.stack(states), dim=1)


def test_an_encoder_is_recognised_and_equals_transformers(minilm_server: Server, expected: torch.Tensor) -> None:
    together = embed(minilm_server, TEXTS)
    torch.testing.assert_close(together, expected, rtol=0, atol=1e-4)
    for text, vector in zip(TEXTS, together, strict=True):
        torch.testing.assert_close(embed(minilm_server, text)[0], vector, rtol=0, atol=1e-5)


def test_many_clients_at_once_get_their_own(minilm_server: Server, expected: torch.Tensor) -> None:
    order = [index % len(TEXTS) for index in range(24)]
    before = minilm_server.metric("engined:request_success_total", finished_reason="stop")
    with ThreadPoolExecutor(8) as pool:
        vectors = list(pool.map(lambda index: embed(minilm_server, [TEXTS[index]])[0], order))
    torch.testing.assert_close(torch.stack(vectors), expected[order], rtol=0, atol=1e-4)
    assert minilm_server.metric("engined:request_success_total", finished_reason="stop") == before + len(order)
    minilm_server.wait_for_metric("engined:num_requests_running", 0)


def test_a_prompt_that_is_too_long_is_refused(minilm_server: Server) -> None:
    """Up to 256 tokens, which is what the model's author used; [CLS] and [SEP] are two of them."""
    pids = minilm_server.processes()
    assert embed(minilm_server, "word " * 254).shape == (1, 384)
    status, body = minilm_server.post("/v1/embeddings", {"input": ["short", "word " * 255]})
    assert status == 400
    assert body["error"]["code"] == "context_length_exceeded"
    assert "257 tokens" in body["error"]["message"] and "256" in body["error"]["message"]
    assert minilm_server.processes() == pids


def test_a_client_that_hangs_up_stops_its_sequences(minilm_server: Server) -> None:
    aborted = minilm_server.metric("engined:request_success_total", finished_reason="abort")
    body = json.dumps({"input": ["word " * 250] * 500}).encode()
    head = f"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    with socket.create_connection(("127.0.0.1", urlsplit(minilm_server.url).port or 0)) as connection:
        connection.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
        deadline = time.monotonic() + 60
        while minilm_server.metric("engined:num_requests_waiting") == 0:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    minilm_server.wait_for_metric("engined:num_requests_waiting", 0)
    minilm_server.wait_for_metric("engined:num_requests_running", 0)
    assert minilm_server.metric("engined:request_success_total", finished_reason="abort") > aborted + 400
    assert embed(minilm_server, "still here").shape == (1, 384)


def test_an_encoder_over_two_ranks(minilm: Path, expected: torch.Tensor, tmp_path: Path) -> None:
    """The answer of a step comes from rank 0 with the first and only call."""
    with running(minilm, tmp_path, "--dtype", "float32", "--tp", "2") as server:
        assert "Worker_TP1" in " ".join(server.processes().values())
        torch.testing.assert_close(embed(server, TEXTS), expected, rtol=0, atol=1e-4)


def test_runner_generate_is_refused_for_an_encoder(minilm: Path, tmp_path: Path) -> None:
    server = start(minilm, tmp_path, "--runner", "generate")
    assert server.process.wait(60) == 2
    assert "--runner generate: all-minilm-l6-v2 is an encoder" in server.log().splitlines()[-1]


def test_a_decoder_by_its_last_token(tmp_path: Path) -> None:
    """In chunks over two ranks, and then again from the prefix cache."""
    model = make_reference(Qwen3Config(**SIZES | {"vocab_size": 512}, head_dim=16))
    folder = save(model, tmp_path / "qwen3")
    write_byte_tokenizer(folder)
    write_pooling(folder, "lasttoken")
    prompts = [torch.randint(0, 512, (length,)).tolist() for length in (3, 40, 17, 100)]
    with torch.inference_mode():
        states = [model.model(torch.tensor([ids])).last_hidden_state[0, -1] for ids in prompts]
    expected = F.normalize(torch.stack(states), dim=1)
    flags = ("--dtype", "float32", "--tp", "2", "--kv-cache-memory", "64MiB", "--max-num-batched-tokens", "16")
    with running(folder, tmp_path, *flags, "--max-num-seqs", "8") as server:
        torch.testing.assert_close(embed(server, prompts), expected, rtol=0, atol=1e-4)
        assert server.metric("engined:prefix_cache_hits_total") == 0
        torch.testing.assert_close(embed(server, prompts), expected, rtol=0, atol=1e-4)
        assert server.metric("engined:prefix_cache_hits_total") == 32 + 16 + 96

"""The default model with quantized weights: what it answers, and its perplexity against bfloat16.

The text is the reference of the Python language, which comes with every Python. The model's own file has blocks of 4
bits, so int4 has the same weights as bfloat16 but for the rounding of their products.
"""

import math
import pydoc_data.topics
from collections.abc import Iterator
from pathlib import Path

import pytest

from engined.client import Client
from tests.end_to_end.server import Server, running

TOPICS = ("naming", "exceptions", "import")
WINDOW = 512
NUM_WINDOWS = 6
FLAGS = {
    "bfloat16": ["--dtype", "bfloat16"],
    "int8": ["--quantization", "int8"],
    "int4": ["--quantization", "int4"],
}


@pytest.fixture(scope="module", params=["int8", "int4"])
def quantized(request: pytest.FixtureRequest, default_gguf: Path, tmp_path_factory: pytest.TempPathFactory):
    flags = [*FLAGS[request.param], "--kv-cache-memory", "256MiB"]
    with running(default_gguf, tmp_path_factory.mktemp(request.param), *flags) as server:
        yield server


@pytest.fixture(scope="module")
def bfloat16_perplexity(default_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> float:
    flags = [*FLAGS["bfloat16"], "--kv-cache-memory", "256MiB"]
    with running(default_gguf, tmp_path_factory.mktemp("bfloat16"), *flags) as server:
        return perplexity(server)


def windows(server: Server) -> Iterator[list[int]]:
    text = "\n\n".join(pydoc_data.topics.topics[topic] for topic in TOPICS)
    status, body = server.post("/v1/tokenize", {"prompt": text})
    assert status == 200
    for begin in range(0, NUM_WINDOWS * WINDOW, WINDOW):
        yield body["tokens"][begin : begin + WINDOW]


def perplexity(server: Server) -> float:
    """Of the text, in windows that know nothing of each other."""
    logprobs = []
    for tokens in windows(server):
        assert len(tokens) == WINDOW
        body = server.complete(prompt=tokens, max_tokens=1, prompt_logprobs=0)
        entries = body["choices"][0]["prompt_logprobs"]
        logprobs += [entry[str(token)]["logprob"] for token, entry in zip(tokens[1:], entries[1:], strict=True)]
    return math.exp(-sum(logprobs) / len(logprobs))


def test_knows_what_it_knew(quantized: Server) -> None:
    answer = quantized.complete(prompt="The capital of France is", max_tokens=4, temperature=0)
    assert "Paris" in answer["choices"][0]["text"]


def test_perplexity_is_within_a_percent(quantized: Server, bfloat16_perplexity: float) -> None:
    assert perplexity(quantized) < 1.01 * bfloat16_perplexity


def test_status_names_the_quantization(quantized: Server) -> None:
    engine = Client(uds=quantized.uds).status()["engine"]
    assert engine["dtype"] == "bfloat16"
    assert engine["quantization"] in ("int8", "int4")

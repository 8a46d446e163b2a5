"""/score and /rerank: with a cross-encoder equal to transformers, with an embedding model the cosine similarity."""

import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from tests.end_to_end.server import Server, running

TOLERANCE = 1e-4
QUERY = "How is bread made?"
DOCUMENTS = [
    "The capital of France is Paris.",
    "Bread is made of flour, water, salt and yeast, kneaded, proved and baked.",
    "Bake it.",
    "The sea is wide and deep. " * 20,
]


class CrossEncoder:
    """A cross-encoder in transformers: random weights, wide enough apart that its scores differ; a real tokenizer."""

    def __init__(self, folder: Path, tokenizer_folder: Path) -> None:
        self.folder = folder
        for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
            shutil.copy(tokenizer_folder / name, folder)
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        torch.manual_seed(0)
        config = BertConfig(
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=128,
            max_position_embeddings=256,
            initializer_range=0.3,
            num_labels=1,
        )
        self._model = BertForSequenceClassification(config).eval()
        self._model.save_pretrained(folder)

    @torch.inference_mode()
    def logit(self, first: str, second: str, **options: Any) -> float:
        return self._model(**self._tokenizer(first, second, return_tensors="pt", **options)).logits.item()

    def score(self, first: str, second: str, **options: Any) -> float:
        return 1 / (1 + math.exp(-self.logit(first, second, **options)))

    def num_tokens(self, pairs: Sequence[tuple[str, str]]) -> int:
        return sum(len(self._tokenizer(*pair).input_ids) for pair in pairs)


@pytest.fixture(scope="module")
def cross_encoder(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> CrossEncoder:
    return CrossEncoder(tmp_path_factory.mktemp("cross-encoder"), minilm)


@pytest.fixture(scope="module")
def cross_server(cross_encoder: CrossEncoder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(cross_encoder.folder, tmp_path_factory.mktemp("cross"), "--dtype", "float32") as server:
        yield server


def post(server: Server, route: str, **fields: Any) -> dict[str, Any]:
    status, body = server.post(route, fields)
    assert status == 200, body
    assert isinstance(body, dict)
    return body


def scores(body: dict[str, Any]) -> list[float]:
    assert [(item["object"], item["index"]) for item in body["data"]] == [
        ("score", index) for index in range(len(body["data"]))
    ]
    return [item["score"] for item in body["data"]]


def test_scores_equal_transformers(cross_server: Server, cross_encoder: CrossEncoder) -> None:
    expected = [cross_encoder.score(QUERY, document) for document in DOCUMENTS]
    assert max(expected) - min(expected) > 0.1, "the scores are too close to tell anything"
    body = post(cross_server, "/score", text_1=QUERY, text_2=DOCUMENTS)
    assert scores(body) == pytest.approx(expected, abs=TOLERANCE)
    num_tokens = cross_encoder.num_tokens([(QUERY, document) for document in DOCUMENTS])
    assert body["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    assert body["object"] == "list" and body["id"].startswith("score-") and isinstance(body["created"], int)


def test_raw_scores_and_truncation(cross_server: Server, cross_encoder: CrossEncoder) -> None:
    raw = post(cross_server, "/score", text_1=QUERY, text_2=DOCUMENTS, use_activation=False)
    assert scores(raw) == pytest.approx([cross_encoder.logit(QUERY, text) for text in DOCUMENTS], abs=TOLERANCE)
    cut = post(cross_server, "/score", text_1=QUERY, text_2=DOCUMENTS, truncate_prompt_tokens=20)
    expected = [cross_encoder.score(QUERY, text, truncation=True, max_length=20) for text in DOCUMENTS]
    assert scores(cut) == pytest.approx(expected, abs=TOLERANCE)


def test_pairs_and_synonyms(cross_server: Server, cross_encoder: CrossEncoder) -> None:
    others = DOCUMENTS[1:] + DOCUMENTS[:1]
    expected = [cross_encoder.score(*pair) for pair in zip(DOCUMENTS, others, strict=True)]
    for names in (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")):
        body = post(cross_server, "/v1/score", **dict(zip(names, (DOCUMENTS, others), strict=True)))
        assert scores(body) == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.parametrize("route", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_rerank_puts_the_best_first(cross_server: Server, cross_encoder: CrossEncoder, route: str) -> None:
    expected = [cross_encoder.score(QUERY, document) for document in DOCUMENTS]
    documents = [DOCUMENTS[0], {"text": DOCUMENTS[1]}, *DOCUMENTS[2:]]
    body = post(cross_server, route, query=QUERY, documents=documents)
    order = sorted(range(len(DOCUMENTS)), key=lambda index: -expected[index])
    assert [result["index"] for result in body["results"]] == order
    for result in body["results"]:
        assert result["document"] == {"text": DOCUMENTS[result["index"]]}
        assert result["relevance_score"] == pytest.approx(expected[result["index"]], abs=TOLERANCE)
    num_tokens = cross_encoder.num_tokens([(QUERY, document) for document in DOCUMENTS])
    assert body["usage"] == {"total_tokens": num_tokens} and body["id"].startswith("rerank-")

    shorter = post(cross_server, route, query=QUERY, documents=DOCUMENTS, top_n=2, return_documents=False)
    assert [result["index"] for result in shorter["results"]] == order[:2]
    assert all(set(result) == {"index", "relevance_score"} for result in shorter["results"])
    more = post(cross_server, route, query=QUERY, documents=DOCUMENTS, top_n=99)
    assert len(more["results"]) == len(DOCUMENTS)


def test_embedding_model_scores_by_cosine(minilm_server: Server) -> None:
    data = post(minilm_server, "/v1/embeddings", input=[QUERY, *DOCUMENTS])["data"]
    query, *documents = (item["embedding"] for item in data)
    expected = [sum(a * b for a, b in zip(query, document, strict=True)) for document in documents]
    body = post(minilm_server, "/score", text_1=QUERY, text_2=DOCUMENTS)
    assert scores(body) == pytest.approx(expected, abs=1e-6)
    best, *_ = post(minilm_server, "/rerank", query=QUERY, documents=DOCUMENTS)["results"]
    assert best["index"] == 1, "the real model knows which text is about making bread"


def test_cross_encoder_has_no_embeddings(cross_server: Server) -> None:
    status, body = cross_server.post("/v1/embeddings", {"input": "a"})
    assert status == 400 and "/v1/rerank" in body["error"]["message"], body


@pytest.mark.parametrize(
    ("route", "fields", "param"),
    [
        ("/score", {"text_1": "a"}, "text_2"),
        ("/score", {"text_1": "a", "queries": "b", "text_2": "c"}, "queries"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
        ("/score", {"text_1": ["a", "b"], "text_2": "a"}, "text_1"),
        ("/score", {"queries": "a", "documents": ["b", ""]}, "documents[1]"),
        ("/score", {"text_1": "", "text_2": "a"}, "text_1"),
        ("/score", {"text_1": "a", "text_2": []}, "text_2"),
        ("/score", {"text_1": "a", "text_2": ["b", "word " * 300]}, "text_2[1]"),
        ("/score", {"text_1": "a", "text_2": "b", "truncate_prompt_tokens": 3}, "truncate_prompt_tokens"),
        ("/rerank", {"documents": ["a"]}, "query"),
        ("/rerank", {"query": "a", "documents": []}, "documents"),
        ("/rerank", {"query": "a", "documents": ["b"], "top_n": 0}, "top_n"),
        ("/rerank", {"query": "a", "documents": [{"text": "b", "title": "c"}]}, "documents[0].title"),
        ("/rerank", {"query": "a", "documents": [{"title": "c"}]}, "documents[0].title"),
        ("/rerank", {"query": "a", "documents": [1]}, "documents[0]"),
    ],
)
def test_faults_are_named(cross_server: Server, route: str, fields: dict[str, Any], param: str) -> None:
    status, body = cross_server.post(route, fields)
    assert status == 400, body
    assert body["error"]["param"] == param and body["error"]["type"] == "invalid_request_error", body

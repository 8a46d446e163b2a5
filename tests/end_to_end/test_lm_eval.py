"""lm-eval scores the same documents through its `local-completions` client and with transformers in its own process.

lm-eval is large, so it is in an extra of its own, `eval`; without it these tests are skipped. Its tasks are not used:
they would download their documents.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from tests.end_to_end.server import Server

pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install -e '.[eval]'")

from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.api.model import TemplateLM  # noqa: E402
from lm_eval.models.huggingface import HFLM  # noqa: E402
from lm_eval.models.openai_completions import LocalCompletionsAPI  # noqa: E402

TOLERANCE = 1e-3
DOCUMENTS = [
    ("The capital of France is", " Paris."),
    ("The capital of France is", " a banana in a teapot."),
    ("Water boils at", " 100 degrees Celsius at sea level."),
    ("Q: What is 12 times 7?\nA:", " 84"),
    ("def add(a, b):\n", "    return a + b\n"),
    ("", "Once upon a time there was a king who had no crown."),
    ("Bonjour, je m'appelle", " Zoë — déjà vu, 你好 👩‍👩‍👧"),
    ("The quick brown fox", " jumps over the lazy dog"),
    ("x", "\n\n\t 1e-3 <b>&amp;</b>"),
    ("The stock market rose today. " * 30, "Then it fell again, and nobody knew why."),
]
CLIENTS = {
    "batches": {"num_concurrent": 1, "batch_size": 4},
    "concurrent": {"num_concurrent": 4, "batch_size": 1},
    "texts": {"num_concurrent": 1, "batch_size": 1, "tokenized_requests": False},
}
"""Ways to send the documents: several token lists at once, several requests at once, and as text."""


@pytest.fixture(scope="module")
def tokenizer(default_gguf: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(default_gguf.parent, gguf_file=default_gguf.name)


@pytest.fixture(scope="module")
def expected(reference_model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """What the `hf` backend says. One thread: two that wait for each other are slow where other tests run too."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = HFLM(pretrained=reference_model, tokenizer=tokenizer, batch_size=1)
        return {kind: answers(model, kind) for kind in ("loglikelihood", "loglikelihood_rolling")}
    finally:
        torch.set_num_threads(num_threads)


@pytest.fixture(params=CLIENTS)
def client(
    request: pytest.FixtureRequest, exact_server: Server, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> LocalCompletionsAPI:
    tokenizer.save_pretrained(tmp_path)
    return LocalCompletionsAPI(
        base_url=f"{exact_server.url}/v1/completions",
        model=json.loads(exact_server.get("/v1/models")[1])["data"][0]["id"],
        tokenizer=str(tmp_path),
        tokenizer_backend="huggingface",
        max_retries=1,
        **CLIENTS[request.param],
    )


def answers(model: TemplateLM, kind: str) -> list[Any]:
    """What `model` says to the requests of one kind, one for each document."""
    arguments: list[tuple[str, ...]] = list(DOCUMENTS)
    if kind == "loglikelihood_rolling":
        arguments = [(context + continuation,) for context, continuation in DOCUMENTS]
    requests = [Instance(request_type=kind, doc={}, arguments=item, idx=i) for i, item in enumerate(arguments)]
    result: list[Any] = getattr(model, kind)(requests, disable_tqdm=True)
    return result


def test_loglikelihood(client: LocalCompletionsAPI, expected: dict[str, Any]) -> None:
    for document, ours, theirs in zip(
        DOCUMENTS, answers(client, "loglikelihood"), expected["loglikelihood"], strict=True
    ):
        assert ours[0] == pytest.approx(theirs[0], abs=TOLERANCE), document
        assert ours[1] == theirs[1], document


def test_loglikelihood_rolling(client: LocalCompletionsAPI, expected: dict[str, Any]) -> None:
    ours = answers(client, "loglikelihood_rolling")
    assert ours == pytest.approx(expected["loglikelihood_rolling"], abs=TOLERANCE)

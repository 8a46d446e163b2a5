"""Log-probabilities over HTTP, against transformers' own logits (fp32)."""

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from tests.end_to_end import reference
from tests.end_to_end.server import Server

PROMPT = "The capital of France is Paris, and the capital of Germany is"


@pytest.fixture(scope="module")
def ids(default_gguf: Path) -> list[int]:
    return reference.encode(default_gguf, [PROMPT])[0]


@pytest.fixture(scope="module")
def expected(reference_model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """[positions, vocabulary]: log-probabilities of the token after each position of the prompt."""
    with torch.inference_mode():
        return reference_model(torch.tensor([ids])).logits[0].log_softmax(dim=-1)


def test_generated_token(exact_server: Server, expected: torch.Tensor) -> None:
    body = exact_server.complete(prompt=PROMPT, max_tokens=1, temperature=0, logprobs=4, return_token_ids=True)
    choice = body["choices"][0]
    assert choice["token_ids"] == [int(expected[-1].argmax())]
    assert choice["logprobs"]["token_logprobs"][0] == pytest.approx(expected[-1].max().item(), abs=1e-4)
    found = sorted(choice["logprobs"]["top_logprobs"][0].values(), reverse=True)
    assert found == pytest.approx(expected[-1].topk(4).values.tolist(), abs=1e-4)


def test_sampled_token_is_among_its_logprobs(exact_server: Server) -> None:
    message = {"role": "user", "content": "Name a colour."}
    fields = {"messages": [message], "max_tokens": 20, "temperature": 1.9, "seed": 3, "logprobs": True}
    status, body = exact_server.post("/v1/chat/completions", fields | {"top_logprobs": 2})
    assert status == 200
    content = body["choices"][0]["logprobs"]["content"]
    assert len(content) == body["usage"]["completion_tokens"]
    for entry in content:
        assert len(entry["top_logprobs"]) in (2, 3)
        assert entry["logprob"] in [top["logprob"] for top in entry["top_logprobs"] if top["token"] == entry["token"]]
    assert any(len(entry["top_logprobs"]) == 3 for entry in content)  # one that was not among the best two


def test_echo_scores_the_prompt(exact_server: Server, ids: list[int], expected: torch.Tensor) -> None:
    body = exact_server.complete(prompt=PROMPT, max_tokens=0, echo=True, logprobs=1)
    choice = body["choices"][0]
    assert choice["text"] == PROMPT
    values = choice["logprobs"]["token_logprobs"]
    assert values[0] is None
    targets = torch.tensor(ids[1:]).unsqueeze(-1)
    assert values[1:] == pytest.approx(expected[:-1].gather(-1, targets).flatten().tolist(), abs=1e-4)
    assert body["usage"]["completion_tokens"] == 0


def test_prompt_logprobs_are_the_same_after_a_prefix_hit(exact_server: Server, ids: list[int]) -> None:
    long_prompt = ids * 6
    exact_server.complete(prompt=long_prompt, max_tokens=1)
    first = exact_server.complete(prompt=long_prompt, max_tokens=1, prompt_logprobs=1)
    again = exact_server.complete(prompt=long_prompt, max_tokens=1, prompt_logprobs=1)
    logprobs = first["choices"][0]["prompt_logprobs"]
    assert len(logprobs) == len(long_prompt)
    assert logprobs[0] is None
    assert [list(entry) for entry in logprobs[1:]] == [
        list(entry) for entry in again["choices"][0]["prompt_logprobs"][1:]
    ]
    assert all(str(token) in entry for token, entry in zip(long_prompt[1:], logprobs[1:], strict=True))

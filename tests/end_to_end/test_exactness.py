"""fp32, greedy: the token ids are those of transformers, whatever the scheduling, the cache and the ranks do."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from tests.end_to_end import reference
from tests.end_to_end.byte_tokenizer import write_byte_tokenizer
from tests.end_to_end.server import Server, running

EXACT = ("--dtype", "float32", "--kv-cache-memory", "512MiB", "--max-model-len", "1024")


@pytest.fixture(scope="module")
def prompts(default_gguf: Path) -> list[list[int]]:
    return reference.encode(default_gguf, reference.PROMPTS)


@pytest.fixture(scope="module")
def expected(reference_model: PreTrainedModel, prompts: list[list[int]]) -> list[list[int]]:
    return reference.generate(reference_model, prompts)


@pytest.fixture(scope="module")
def server(default_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(default_gguf, tmp_path_factory.mktemp("plain"), *EXACT) as server:
        yield server


def complete(server: Server, prompt: list[int]) -> dict[str, Any]:
    return server.complete(
        prompt=prompt, max_tokens=reference.NUM_TOKENS, temperature=0, ignore_eos=True, return_token_ids=True
    )


def token_ids(server: Server, prompts: list[list[int]], at_once: int) -> list[list[int]]:
    with ThreadPoolExecutor(at_once) as pool:
        answers = pool.map(lambda prompt: complete(server, prompt), prompts)
        return [answer["choices"][0]["token_ids"] for answer in answers]


def test_alone_then_from_the_prefix_cache(server: Server, prompts: list[list[int]], expected: list[list[int]]) -> None:
    assert token_ids(server, prompts, at_once=1) == expected
    assert token_ids(server, prompts, at_once=8) == expected
    longest = max(prompts, key=len)
    assert complete(server, longest)["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_sixteen_at_once(server: Server, prompts: list[list[int]], expected: list[list[int]]) -> None:
    assert server.post("/reset_prefix_cache", {})[0] == 200
    assert token_ids(server, prompts, at_once=16) == expected


def test_chunked_prefill(
    default_gguf: Path, prompts: list[list[int]], expected: list[list[int]], tmp_path: Path
) -> None:
    flags = (*EXACT, "--max-num-batched-tokens", "16", "--max-num-seqs", "16")
    with running(default_gguf, tmp_path, *flags) as server:
        assert token_ids(server, prompts, at_once=16) == expected


def test_preemption(default_gguf: Path, prompts: list[list[int]], expected: list[list[int]], tmp_path: Path) -> None:
    """KV room for about 4 of the 16 requests that run at once: 36 blocks of 16 tokens."""
    block_bytes = 16 * 2 * 30 * 3 * 64 * 4
    flags = ("--dtype", "float32", "--kv-cache-memory", str(36 * block_bytes))
    with running(default_gguf, tmp_path, *flags) as server:
        assert token_ids(server, prompts, at_once=16) == expected
        preemptions = server.metric("engined:num_preemptions_total")
        print(f"{preemptions:.0f} preemptions")
        assert preemptions > 0


def test_three_ranks(default_gguf: Path, prompts: list[list[int]], expected: list[list[int]], tmp_path: Path) -> None:
    with running(default_gguf, tmp_path, *EXACT, "--tp", "3") as server:
        titles = " ".join(server.processes().values())
        assert all(f"Worker_TP{rank}" in titles for rank in range(3))
        assert token_ids(server, prompts, at_once=16) == expected


def test_two_ranks_of_a_random_qwen3(tmp_path: Path) -> None:
    torch.manual_seed(7)
    config = Qwen3Config(
        vocab_size=512, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=8,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=512, tie_word_embeddings=False,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).eval()
    # The initial weights are so small that every token would be nearly as likely as the next.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(8)
    folder = tmp_path / "qwen3"
    model.save_pretrained(folder)
    write_byte_tokenizer(folder)
    prompts = [torch.randint(0, 512, (length,)).tolist() for length in (3, 16, 17, 40, 100)]
    expected = reference.generate(model, prompts)
    with running(folder, tmp_path, "--dtype", "float32", "--tp", "2", "--kv-cache-memory", "64MiB") as server:
        assert token_ids(server, prompts, at_once=5) == expected

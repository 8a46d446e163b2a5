"""A seed gives the same tokens alone, in a batch, after a preemption and on a prefix hit (fp32)."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.end_to_end.server import Server, running

PROMPT = "Tell me a story about a dragon who could not fly. " * 4


def draw(server: Server, seed: int, **changes: Any) -> list[int]:
    fields = {"max_tokens": 48, "temperature": 1.0, "top_p": 0.95, "ignore_eos": True, "return_token_ids": True}
    body = server.complete(prompt=PROMPT, seed=seed, **(fields | changes))
    ids: list[int] = body["choices"][0]["token_ids"]
    return ids


def test_alone_in_a_batch_on_a_prefix_hit_and_preempted(
    exact_server: Server, default_gguf: Path, tmp_path: Path
) -> None:
    alone = [draw(exact_server, seed, cache_salt=f"cold-{seed}") for seed in range(6)]
    assert len({tuple(ids) for ids in alone}) == 6
    with ThreadPoolExecutor(6) as pool:  # also a prefix hit: all share the prompt
        assert list(pool.map(lambda seed: draw(exact_server, seed), range(6))) == alone
    block_bytes = 16 * 2 * 30 * 3 * 64 * 4
    with running(default_gguf, tmp_path, "--dtype", "float32", "--kv-cache-memory", str(16 * block_bytes)) as server:
        with ThreadPoolExecutor(6) as pool:
            drawn = list(pool.map(lambda seed: draw(server, seed, cache_salt=str(seed)), range(6)))
        assert server.metric("engined:num_preemptions_total") > 0
        assert drawn == alone


def test_choices_are_the_seeds_that_follow(exact_server: Server) -> None:
    body = exact_server.complete(
        prompt=PROMPT, seed=100, n=4, max_tokens=16, ignore_eos=True, return_token_ids=True, top_p=0.95
    )
    choices = [choice["token_ids"] for choice in sorted(body["choices"], key=lambda choice: choice["index"])]
    assert choices == [draw(exact_server, 100 + index, max_tokens=16) for index in range(4)]


def test_unseeded_requests_differ(exact_server: Server) -> None:
    fields = {"prompt": PROMPT, "max_tokens": 16, "temperature": 1.5, "ignore_eos": True}
    assert (
        exact_server.complete(**fields)["choices"][0]["text"] != exact_server.complete(**fields)["choices"][0]["text"]
    )

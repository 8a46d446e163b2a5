"""A long prompt beside running streams: it comes in by pieces, and they get a token with each."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.end_to_end.server import running

NUM_STREAMS = 4
PROMPT = [100 + index * 7 % 1000 for index in range(1500)]


def test_streams_run_on_while_a_long_prompt_comes_in(default_gguf: Path, tmp_path: Path) -> None:
    """With a limit that no step can keep, a step holds 32 tokens: one of each stream, and 28 of the prompt."""
    flags = ("--max-step-ms", "0.001", "--kv-cache-memory", "256MiB")
    stream = {"prompt": [5, 6, 7], "max_tokens": 400, "ignore_eos": True}
    with running(default_gguf, tmp_path, *flags) as server, ThreadPoolExecutor(NUM_STREAMS) as pool:
        streams = [pool.submit(server.stream, "/v1/completions", stream) for _ in range(NUM_STREAMS)]
        server.wait_for_metric("engined:num_requests_running", NUM_STREAMS)
        before = server.metric("engined:generation_tokens_total")
        server.complete(prompt=PROMPT, max_tokens=1)
        num_tokens = server.metric("engined:generation_tokens_total") - before
        assert not any(answer.done() for answer in streams)
        assert num_tokens >= len(PROMPT) // (32 - NUM_STREAMS) * NUM_STREAMS

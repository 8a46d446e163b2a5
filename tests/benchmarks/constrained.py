"""Constrained streams beside unconstrained ones: tokens per second, and steps saved by forced tokens.

By hand, on a quiet machine: python -m tests.benchmarks.constrained [rounds [tokens]]. Each round runs 8 streams four
times, in the order A B B A, so that a machine that slows down or warms up does so for both.
"""

import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from engined.config.schema import DEFAULT_MODEL
from tests.end_to_end.server import Server, running

NUM_STREAMS = 8
FORCED_TOKENS = "engined:num_forced_tokens_total"

# Nothing is forced: each token is drawn, as without a constraint, and costs a mask.
FREE_TEXT: dict[str, Any] = {"regex": r"[a-zA-Z ,.]*"}
# Names of properties and values of enums are forced.
RECORDS: dict[str, Any] = {
    "json": {
        "type": "array",
        "minItems": 200,
        "items": {
            "type": "object",
            "properties": {
                "identification_number": {"type": "integer", "minimum": 0, "maximum": 999},
                "current_status": {"enum": ["waiting for an answer", "done with everything"]},
            },
            "required": ["identification_number", "current_status"],
            "additionalProperties": False,
        },
    },
    "disable_any_whitespace": True,
}
CONSTRAINTS = {"nothing forced": FREE_TEXT, "records": RECORDS}


def main(num_rounds: int, num_tokens: int) -> None:
    """Print one line for each kind of constraint."""
    with tempfile.TemporaryDirectory() as folder, running(DEFAULT_MODEL, Path(folder)) as server:
        for constraint in (None, *CONSTRAINTS.values()):
            tokens_per_second(server, constraint, 8)
        for name, constraint in CONSTRAINTS.items():
            before = server.metric(FORCED_TOKENS)
            ratios = [_compare(server, constraint, num_tokens) for _ in range(num_rounds)]
            num_saved = server.metric(FORCED_TOKENS) - before
            share = num_saved / (2 * num_rounds * NUM_STREAMS * num_tokens)
            print(f"{name:<16} {statistics.median(ratios):6.3f} of unconstrained, {share:6.1%} of the tokens forced")


def _compare(server: Server, constraint: dict[str, Any], num_tokens: int) -> float:
    """Constrained over unconstrained tokens per second, in the order A B B A."""
    order = (None, constraint, constraint, None)
    first, second, third, fourth = (tokens_per_second(server, item, num_tokens) for item in order)
    print(f"  {first:7.1f} {second:7.1f} {third:7.1f} {fourth:7.1f} tokens/s")
    return (second + third) / (first + fourth)


def tokens_per_second(server: Server, constraint: dict[str, Any] | None, num_tokens: int) -> float:
    """Of all streams together; each generates exactly `num_tokens`."""
    fields: dict[str, Any] = {"min_tokens": num_tokens, "max_tokens": num_tokens}
    if constraint is not None:
        fields |= {"structured_outputs": constraint}
    started = time.perf_counter()
    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        jobs = [pool.submit(_generate, server, index, fields) for index in range(NUM_STREAMS)]
        num_generated = sum(job.result() for job in jobs)
    seconds = time.perf_counter() - started
    assert num_generated == NUM_STREAMS * num_tokens, num_generated
    return num_generated / seconds


def _generate(server: Server, seed: int, fields: dict[str, Any]) -> int:
    body = server.complete(prompt="The list:", seed=seed, temperature=1.0, **fields)
    return int(body["usage"]["completion_tokens"])


if __name__ == "__main__":
    arguments = [int(argument) for argument in sys.argv[1:]]
    main(*arguments, *(5, 100)[len(arguments) :])

"""Fairness between API keys, with the real scheduler, cache and model: a flood does not starve a single request.

The bound: a key that has nothing else in the engine waits for a seat, and then for at most one request of each other
key, however many they have queued.
"""

from pathlib import Path

import pytest

from tests.grammar.constrained_engine import ConstrainedEngine

NUM_FLOOD = 200
FLOODING = ("loud", "louder")


@pytest.fixture(scope="module")
def engine(default_gguf: Path) -> ConstrainedEngine:
    """Eight seats."""
    return ConstrainedEngine(default_gguf)


def begun(engine: ConstrainedEngine) -> set[str]:
    return {name for name, answer in engine.answers.items() if answer.token_ids}


def test_a_flood_of_other_keys_is_overtaken(engine: ConstrainedEngine) -> None:
    for number in range(NUM_FLOOD):
        for key in FLOODING:
            # Of different lengths, so that seats come free one at a time.
            engine.add(f"{key}-{number}", "One", None, tenant=key, max_tokens=3 + number % 5, ignore_eos=True)
    while not any(answer.finished for answer in engine.answers.values()):
        engine.step()
    engine.add("single", "One", None, tenant="quiet", max_tokens=2, ignore_eos=True)

    waiting = engine.scheduler.waiting_request_ids()
    assert len(waiting) > 2 * NUM_FLOOD - 20
    ahead = [name.split("-")[0] for name in waiting[: waiting.index("single")]]
    assert len(ahead) <= len(FLOODING) and len(set(ahead)) == len(ahead), "at most one request of each other key"

    before, num_steps = begun(engine), engine.num_steps
    while "single" not in (now := begun(engine)):
        earlier = now - before
        engine.step()
    assert len(earlier) <= len(FLOODING)
    longest = 7
    assert engine.num_steps - num_steps <= longest * (len(FLOODING) + 1), "a seat comes free in as many steps"

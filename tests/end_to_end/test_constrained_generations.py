"""Whatever ends with "stop" validates, at a high temperature, over 40 schemas."""

from tests.end_to_end.constrained_generations import generate
from tests.end_to_end.server import Server
from tests.end_to_end.tool_schemas import load_schemas

NUM_GENERATIONS = 40
MAX_TOKENS = 64


def test_there_are_40_schemas() -> None:
    assert len(load_schemas()) == 40


def test_what_ends_with_stop_validates(default_server: Server) -> None:
    finish_reasons = generate(default_server, NUM_GENERATIONS, MAX_TOKENS)
    print(f"\n  {dict(finish_reasons)}")
    assert set(finish_reasons) <= {"stop", "length"}
    assert finish_reasons["stop"] >= NUM_GENERATIONS // 8

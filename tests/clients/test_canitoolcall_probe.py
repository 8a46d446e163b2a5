"""The live probe of canitoolcall against a real server: its nine scenarios with tools, streamed and whole."""

import json
from dataclasses import replace

from canitoolcall.probe import BUILTIN_SCENARIOS, EQUIVALENCE_CHECK, Scenario, probe

from tests.end_to_end.server import Server

FOR_LARGER_MODELS = {"parallel-calls", "no-call"}
"""Two calls in one answer, which the format of models without tools does not have; and an answer in a number."""


def for_a_small_model(scenario: Scenario) -> Scenario:
    """The default model would not decide to call by itself, nor end a text: where a call is expected, require it."""
    needs_call = bool(scenario.expect.tool_names) and scenario.tool_choice == "auto"
    return replace(
        scenario,
        tool_choice="required" if needs_call else scenario.tool_choice,
        extra_body={**scenario.extra_body, "max_tokens": 150, "frequency_penalty": 1},
    )


def test_scenarios(default_server: Server) -> None:
    _, body = default_server.get("/v1/models")
    model = json.loads(body)["data"][0]["id"]
    scenarios = [for_a_small_model(scenario) for scenario in BUILTIN_SCENARIOS]
    report = probe(f"{default_server.url}/v1", model, scenarios=scenarios, timeout_s=120)
    problems = [outcome for outcome in report.outcomes if outcome.status != "pass"]
    assert {outcome.scenario_id for outcome in problems} <= FOR_LARGER_MODELS, report.render_text()
    assert all(outcome.status == "fail" and outcome.check != EQUIVALENCE_CHECK for outcome in problems)

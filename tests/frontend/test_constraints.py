"""`response_format` and `structured_outputs`: what reaches the engine, and what is a 400 with the reason."""

import asyncio
import json
import os
import time
from typing import Any

import pytest

from engined.protocol.grammar import GrammarSpec
from tests.end_to_end.server import parents, title
from tests.frontend.conftest import RunningFrontend, StartFrontend

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
BASE: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    COMPLETIONS: {"prompt": "hi"},
    RESPONSES: {"input": "hi"},
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
SCHEMA_TEXT = json.dumps(SCHEMA, separators=(",", ":"))
TAG = {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f>"]}


def schema_format(schema: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **fields}}


async def post(frontend: RunningFrontend, route: str, **fields: Any) -> tuple[int, Any]:
    return await frontend.post(route, {**BASE[route], **fields})


TAKEN: list[tuple[dict[str, Any], GrammarSpec | None]] = [
    ({"response_format": {"type": "text"}}, None),
    ({"response_format": {"type": "json_object"}}, GrammarSpec(kind="json_object", value="")),
    *(
        (
            {"response_format": schema_format(SCHEMA, strict=strict, description="d")},
            GrammarSpec(kind="json_schema", value=SCHEMA_TEXT),
        )
        for strict in (True, False, None)
    ),
    ({"structured_outputs": {"json": SCHEMA}}, GrammarSpec(kind="json_schema", value=SCHEMA_TEXT)),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, GrammarSpec(kind="json_schema", value=SCHEMA_TEXT)),
    (
        {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
        GrammarSpec(kind="json_schema", value=SCHEMA_TEXT, any_whitespace=False),
    ),
    ({"structured_outputs": {"regex": "[0-9]{4}"}}, GrammarSpec(kind="regex", value="[0-9]{4}")),
    ({"structured_outputs": {"choice": ["yes", "né"]}}, GrammarSpec(kind="choice", value=json.dumps(["yes", "né"]))),
    ({"structured_outputs": {"grammar": 'start: "a"+'}}, GrammarSpec(kind="lark", value='start: "a"+')),
    (
        {"structured_outputs": {"json_object": True, "regex": None}, "response_format": {"type": "text"}},
        GrammarSpec(kind="json_object", value=""),
    ),
]


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
async def test_the_engine_gets_the_constraint(start_frontend: StartFrontend, route: str) -> None:
    frontend = await start_frontend()
    for fields, grammar in TAKEN:
        status, answer = await post(frontend, route, n=2, **fields)
        assert status == 200, (fields, answer)
        assert [request.grammar for request in frontend.engine.added[-2:]] == [grammar] * 2


async def test_structural_tags_and_gbnf(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    for fields in (
        {"response_format": {"type": "structural_tag", **TAG}},
        {"structured_outputs": {"structural_tag": json.dumps({"type": "structural_tag", **TAG})}},
        {"structured_outputs": {"structural_tag": TAG}},
    ):
        status, answer = await post(frontend, CHAT, **fields)
        assert status == 200, (fields, answer)
        grammar = frontend.engine.added[-1].grammar
        assert grammar is not None and grammar.kind == "structural_tag"
        assert json.loads(grammar.value) == TAG
    status, answer = await post(
        frontend, CHAT, structured_outputs={"grammar": 'root ::= "yes" | item+\nitem ::= [0-9]'}
    )
    assert status == 200, answer


async def test_responses_take_the_flat_form_and_give_it_back(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    text_format = {"type": "json_schema", "name": "answer", "description": None, "schema": SCHEMA, "strict": True}
    for asked, grammar in (
        ({"type": "text"}, None),
        ({"type": "json_object"}, GrammarSpec(kind="json_object", value="")),
        (text_format, GrammarSpec(kind="json_schema", value=SCHEMA_TEXT)),
    ):
        status, answer = await post(frontend, RESPONSES, text={"format": asked})
        assert status == 200, answer
        assert answer["text"]["format"] == asked
        assert frontend.engine.added[-1].grammar == grammar
    status, answer = await post(frontend, RESPONSES, structured_outputs={"choice": ["a"]})
    assert status == 200 and frontend.engine.added[-1].grammar == GrammarSpec(kind="choice", value='["a"]')
    for fields, param in (
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_object", "schema": {}}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_object"}}, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
    ):
        for route in (RESPONSES, f"{RESPONSES}/input_tokens"):
            status, answer = await frontend.post(route, {"input": "hi", **fields})
            error = answer["error"]
            assert (status, error["param"]) == (400, param), error
            assert "text.format" in error["message"] and "response_format" not in error["message"], error


FAULTY: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "xml"}}, "response_format.type", ""),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "required"),
    ({"response_format": schema_format(None)}, "response_format.json_schema.schema", "json_object"),
    ({"response_format": schema_format([])}, "response_format.json_schema.schema", "expected"),
    ({"response_format": schema_format("")}, "response_format.json_schema.schema", "expected"),
    ({"response_format": schema_format(False)}, "response_format.json_schema.schema", ""),
    (
        {"response_format": schema_format({"type": "array", "uniqueItems": True})},
        "response_format.json_schema.schema",
        "uniqueItems",
    ),
    (
        {"response_format": {"type": "text", "json_schema": {"schema": {}}}},
        "response_format.json_schema",
        "json_schema",
    ),
    ({"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema", "json_schema"),
    ({"response_format": {"type": "structural_tag"}}, "response_format.structures", "required"),
    (
        {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
        "structured_outputs",
        "response_format",
    ),
    ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
    ({"structured_outputs": {"json_object": False}}, "structured_outputs", "exactly one"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "regex and choice"),
    ({"structured_outputs": {"regx": "a"}}, "structured_outputs.regx", "did you mean regex"),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "not valid JSON"),
    ({"structured_outputs": {"json": "[]"}}, "structured_outputs.json", "JSON Schema"),
    ({"structured_outputs": {"json": ""}}, "structured_outputs.json", "not valid JSON"),
    ({"structured_outputs": {"json": False}}, "structured_outputs.json", ""),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "1 to"),
    ({"structured_outputs": {"choice": ["a", 5]}}, "structured_outputs.choice[1]", "expected"),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex", ""),
    ({"structured_outputs": {"regex": "(?=a)b"}}, "structured_outputs.regex", ""),
    ({"structured_outputs": {"grammar": "start: nothing"}}, "structured_outputs.grammar", ""),
    ({"structured_outputs": {"grammar": 'root ::= "a'}}, "structured_outputs.grammar", ""),
    (
        {"structured_outputs": {"regex": "a", "disable_any_whitespace": True}},
        "structured_outputs.disable_any_whitespace",
        "leave it out",
    ),
    (
        {"structured_outputs": {"json": {}, "whitespace_pattern": " "}},
        "structured_outputs.whitespace_pattern",
        "disable_any_whitespace",
    ),
    (
        {"structured_outputs": {"json": {}, "disable_additional_properties": True}},
        "structured_outputs.disable_additional_properties",
        "additionalProperties",
    ),
    ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag", "structures"),
    ({"guided_json": SCHEMA}, "guided_json", "structured_outputs.json"),
    ({"guided_choice": ["a"]}, "guided_choice", "structured_outputs.choice"),
]


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
async def test_faults_name_the_field_and_the_reason(start_frontend: StartFrontend, route: str) -> None:
    frontend = await start_frontend()
    for fields, param, text in FAULTY:
        status, answer = await post(frontend, route, **fields)
        assert status == 400, (fields, answer)
        error = answer["error"]
        assert error["param"] == param, error
        assert param.split("[")[0].split(".regx")[0] in error["message"] and text in error["message"], error
        assert len(error["message"]) < 500
    assert frontend.engine.added == []
    status, answer = await frontend.post(f"{CHAT}/render", {**BASE[CHAT], "structured_outputs": {"regex": "("}})
    assert (status, answer["error"]["param"]) == (400, "structured_outputs.regex")


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


HOSTILE: dict[str, dict[str, Any]] = {  # H36 and H37 of the list of hostile inputs
    "cycle": {"json": {"$ref": "#"}},
    "long cycle": {"json": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}},
    "remote": {"json": {"$ref": "http://127.0.0.1:1/schema.json"}},
    "large enum": {"json": {"enum": [f"v{number}" for number in range(80_000)]}},
    "deep": {"json": nested(400)},
    "deep text": {"json": '{"items":' * 50_000 + "{}" + "}" * 50_000},
    "large choice": {"choice": ["x" * 100] * 10_000},
    "parentheses": {"regex": "(" * 30_000 + "a" + ")" * 30_000},
    "Lark parentheses": {"grammar": "start: " + "(" * 30_000 + '"a"' + ")" * 30_000},
    "GBNF parentheses": {"grammar": "root ::= " + "(" * 30_000 + '"a"' + ")" * 30_000},
    "newlines": {"grammar": "\n" * 16_000 + "x"},
    "intersection": {"json": {"allOf": [{"pattern": f"(a|b)*a(a|b){{{n}}}", "type": "string"} for n in range(40)]}},
}


def grammar_checkers() -> set[int]:
    """Those of this process."""
    children = [pid for pid, parent in parents().items() if parent == os.getpid()]
    return {pid for pid in children if "grammar checker" in title(pid)}


@pytest.mark.alone
async def test_hostile_constraints_are_refused_within_a_second(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    others = grammar_checkers()
    assert (await post(frontend, CHAT, structured_outputs={"regex": "a"}))[0] == 200
    for name, constraint in HOSTILE.items():
        started = time.monotonic()
        status, answer = await post(frontend, CHAT, structured_outputs=constraint)
        seconds = time.monotonic() - started
        assert status == 400, (name, answer)
        assert seconds < 1.5, (name, seconds)  # a second, and what a loaded machine adds
        assert len(answer["error"]["message"]) < 500
    assert grammar_checkers() <= others  # the last one was given up, and is gone
    assert (await post(frontend, CHAT, structured_outputs={"regex": "b"}))[0] == 200


async def test_a_client_that_goes_away_leaves_no_answer_to_the_next(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    assert (await post(frontend, CHAT, structured_outputs={"regex": "a"}))[0] == 200
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await post(frontend, CHAT, structured_outputs=HOSTILE["intersection"])
    results = await asyncio.gather(
        *(post(frontend, CHAT, structured_outputs={"regex": pattern}) for pattern in ("x", "(", "y", "[")),
    )
    assert [status for status, _ in results] == [200, 400, 200, 400]

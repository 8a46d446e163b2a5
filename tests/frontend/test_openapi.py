"""/openapi.json and /docs: complete, true to the answers, and usable where there is no internet."""

import json
import re
from typing import Any

import jsonschema_rs
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from engined.checkpoint.model_info import ModelInfo
from engined.config.schema import Config, ServerConfig
from engined.frontend.app import build_frontend
from engined.frontend.http_errors import error_object
from tests.frontend.conftest import StartFrontend
from tests.openapi_document import answer_validator, close_objects, events_validator, references, validator

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "The capital"}]
EVERYTHING: dict[str, Any] = {
    "n": 2,
    "echo": True,
    "return_token_ids": True,
    "return_prompt_text": True,
    "stop": ["France"],
}
CHAT_BODIES: list[dict[str, Any]] = [
    {"messages": MESSAGES},
    {"messages": MESSAGES, **EVERYTHING, "logprobs": True, "top_logprobs": 2, "prompt_logprobs": 1},
    {"messages": MESSAGES, "max_tokens": 1, "logprobs": True},
]
COMPLETION_BODIES: list[dict[str, Any]] = [
    {"prompt": "Hello"},
    {"prompt": ["Hello", "a b"], **EVERYTHING, "logprobs": 2, "prompt_logprobs": 1},
    {"prompt": [1, 2, 3], "max_tokens": 0, "echo": True, "logprobs": 0},
]


def routes(app: web.Application) -> set[tuple[str, str]]:
    found = set()
    for route in app.router.routes():
        assert route.resource is not None
        if route.method != "HEAD":
            found.add((route.method, route.resource.canonical))
    return found


async def test_every_route_and_every_field_is_described(model_info: ModelInfo) -> None:
    app = build_frontend(Config(), model_info, "/nowhere.sock").app
    async with TestClient(TestServer(app)) as client, client.get("/openapi.json") as response:
        document = await response.json()
    operations = [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    assert {(method, path) for method, path, _ in operations} == routes(app)
    assert len({operation["operationId"] for _, _, operation in operations}) == len(operations)

    schemas = document["components"]["schemas"]
    assert set(references(document)) == {f"#/components/schemas/{name}" for name in schemas}
    for schema in schemas.values():
        jsonschema_rs.meta.validate(schema)
    for _, path, operation in operations:
        for content in operation.get("requestBody", {}).get("content", {}).values():
            for name, schema in nested_objects(schemas, content["schema"]).items():
                for field, described in schema["properties"].items():
                    assert described["x-engined-class"] in ("honoured", "accepted", "refused"), (path, name, field)
                    assert described["description"], (path, name, field)
            if "example" in content:
                validator(document, content["schema"]).validate(content["example"])


def nested_objects(schemas: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """The named schemas that a body may hold."""
    found: dict[str, Any] = {}
    waiting = list(references(schema))
    while waiting:
        name = waiting.pop().rpartition("/")[2]
        if name not in found:
            found[name] = schemas[name]
            waiting += references(schemas[name])
    return found


async def test_answers_are_as_described(start_frontend: StartFrontend) -> None:
    """Nothing is answered that is not in the schema, whatever a body asks for; the same for streams and errors."""
    frontend = await start_frontend()
    document = close_objects((await frontend.get("/openapi.json"))[1])
    for path, bodies in ((CHAT, CHAT_BODIES), (COMPLETIONS, COMPLETION_BODIES)):
        for body in bodies:
            status, answer = await frontend.post(path, body)
            assert status == 200, answer
            answer_validator(document, path).validate(answer)
            options = {"include_usage": True, "continuous_usage_stats": True}
            for stream_options in ({}, {"stream_options": options}):
                events = await frontend.stream(path, {**body, **stream_options})
                assert events.pop() == "[DONE]" and events
                for event in events:
                    events_validator(document, path).validate(json.loads(event))
        status, answer = await frontend.post(path, {"n": 0})
        answer_validator(document, path, status).validate(answer)
        events_validator(document, path).validate(error_object(ValueError()))
        assert not events_validator(document, path).is_valid({"error": "?"})


async def test_the_page_needs_nothing_but_the_server(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend(config=Config(server=ServerConfig(api_key=("secret",))))
    async with frontend.client.get("http://engined/docs") as response:
        assert response.status == 200 and response.content_type == "text/html"
        assert "connect-src 'self'" in response.headers["Content-Security-Policy"]
        page = await response.text()
    assert re.findall(r"(?:https?:)?//[\w.]+", page) == []
    assert "innerHTML" not in page
    assert (await frontend.get("/openapi.json"))[0] == 401
    status, document = await frontend.get("/openapi.json", headers={"Authorization": "Bearer secret"})
    assert status == 200 and document["openapi"].startswith("3.1")

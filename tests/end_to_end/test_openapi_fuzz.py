"""schemathesis over /openapi.json of a real daemon, with bodies that follow the schemas and bodies that break them: no
answer is a 5xx or differs from its schema, nothing that breaks a schema is taken, and the engine lives on."""

import json
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from tests.end_to_end.server import Server
from tests.openapi_document import close_objects

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]
"""All but positive_data_acceptance: a schema cannot say that stream_options needs stream, or that a prompt must fit."""
FORM = "multipart/form-data"
"""A form holds bytes, so that hardly anything breaks its schema."""
NUM_CASES = 10
NUM_CASES_WITHOUT_BODY = 3
LIMITS = {"max_tokens": 4, "max_completion_tokens": 4, "max_output_tokens": 16}
"""Tokens that a request may ask for, so that it is not the model that takes the time."""
MOST_CHOICES = 2
POOLING = ("/v1/embeddings", "/v1/score", "/score", "/v1/rerank", "/v2/rerank", "/rerank")
REFUSED_HERE = {
    *POOLING,  # the model generates
    "/v1/responses/{response_id}/cancel",  # nothing runs in the background
    "/v1/batches/{batch_id}/cancel",  # the batch has ended
    "/admin/requests/{request_id}",  # no request is under way
}


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A server, and the description that it is held to."""

    url: str
    session: requests.Session
    document: dict[str, Any]
    known: dict[str, str] = field(default_factory=dict)
    """Objects that exist, by the name of the parameter or the field that names them."""
    may_refuse: Collection[str] = ()
    """Paths that need not answer 200 to anything."""

    def find_faults(self) -> list[str]:
        """What is wrong: at most one fault for each operation and kind of case."""
        operations = [
            cast(Ok[Any], result).ok() for result in schemathesis.openapi.from_dict(self.document).get_all_operations()
        ]
        # What is deleted cannot be looked at any more.
        operations.sort(key=lambda operation: operation.method == "delete")
        return [fault for operation in operations for fault in Target(self, operation).run()]


@pytest.mark.slow
def test_the_server_is_as_described(default_server: Server) -> None:
    core = engine_pids(default_server)
    with subject_of(default_server.url) as subject:
        subject = replace(subject, known=make_objects(subject), may_refuse=REFUSED_HERE)
        faults = subject.find_faults()
    assert not faults, "\n\n".join(faults)
    assert engine_pids(default_server) == core


def test_a_pooling_server_is_as_described(minilm_server: Server) -> None:
    core = engine_pids(minilm_server)
    with subject_of(minilm_server.url, *POOLING) as subject:
        faults = subject.find_faults()
    assert not faults, "\n\n".join(faults)
    assert engine_pids(minilm_server) == core


@pytest.mark.parametrize("lie", ["answer", "status", "body"])
def test_a_description_that_lies_is_found_out(default_server: Server, lie: str) -> None:
    with subject_of(default_server.url, "/tokenize") as subject:
        schemas = subject.document["components"]["schemas"]
        if lie == "answer":
            schemas["TokenizeResponse"]["properties"]["count"] = {"type": "string"}
        elif lie == "status":
            del subject.document["paths"]["/tokenize"]["post"]["responses"]["400"]
        else:
            schemas["TokenizeRequest"]["properties"]["prompt"] = {"type": "null"}
        [fault, *_] = subject.find_faults()
        assert fault.startswith("POST /tokenize")


def engine_pids(server: Server) -> list[int]:
    return [pid for pid, title in server.processes().items() if "EngineCore" in title]


@contextmanager
def subject_of(url: str, *paths: str) -> Iterator[Subject]:
    """A server and its own description, of the given paths or of all."""
    with requests.Session() as session:
        document = close_objects(session.get(f"{url}/openapi.json").json())
        if paths:
            document["paths"] = {path: document["paths"][path] for path in paths}
        yield Subject(url=url, session=session, document=document)


def make_objects(subject: Subject) -> dict[str, str]:
    """One of each kind of object that routes have in their path, and the name of the model."""

    def make(path: str, **arguments: Any) -> str:
        response = subject.session.post(subject.url + path, timeout=60, **arguments)
        assert response.status_code == 200, response.text
        name: str = response.json()["id"]
        return name

    line = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "a", "max_tokens": 1}}
    form = {"files": {"file": ("in.jsonl", json.dumps(line))}, "data": {"purpose": "batch"}}
    batch = {"input_file_id": make("/v1/files", **form), "endpoint": "/v1/completions", "completion_window": "24h"}
    return {
        "model": subject.session.get(f"{subject.url}/v1/models").json()["data"][0]["id"],
        "response_id": make("/v1/responses", json={"input": "a", "max_output_tokens": 16}),
        "batch_id": make("/v1/batches", json=batch),
        "file_id": make("/v1/files", **form),
        "input_file_id": batch["input_file_id"],
        "request_id": "chatcmpl-0",
    }


def optional_fields(document: dict[str, Any], schema: dict[str, Any]) -> set[str]:
    """Names of the fields that a body may leave out."""
    schema = document["components"]["schemas"].get(schema.get("$ref", "").rpartition("/")[2], schema)
    return set(schema.get("properties", {})) - set(schema.get("required", []))


class Target:
    """One operation under fire."""

    def __init__(self, subject: Subject, operation: APIOperation[Any, Any, Any, Any]) -> None:
        self._subject = subject
        self._operation = operation
        self._statuses: Counter[int] = Counter()
        self._num_streams = 0
        described = subject.document["paths"][operation.path][operation.method]
        content = described.get("requestBody", {}).get("content", {})
        body = content.get("application/json", {})
        self._example = {name: subject.known.get(name, value) for name, value in body.get("example", {}).items()}
        self._optional = optional_fields(subject.document, body.get("schema", {}))
        self._checks = [check for check in CHECKS if check is not negative_data_rejection or FORM not in content]
        self._num_cases = NUM_CASES if content else NUM_CASES_WITHOUT_BODY
        self._kinds = ["as generated"]
        if self._example or "{" in operation.path:
            self._kinds.append("meeting something")
        if "text/event-stream" in described["responses"]["200"]["content"]:
            self._kinds.append("streaming")
        if content or operation.query:
            self._kinds.append("broken")

    def run(self) -> list[str]:
        """What is wrong with it, as the smallest case that shows it."""
        name = f"{self._operation.method.upper()} {self._operation.path}"
        faults = []
        for kind in self._kinds:
            try:
                self._fire(kind)
            except FailureGroup as error:
                faults.append(f"{name}, {kind}: {error}")
        if self._statuses[200] == 0 and self._operation.path not in self._subject.may_refuse:
            faults.append(f"{name}: never answered 200, so that its answers were not looked at: {self._statuses}")
        if "streaming" in self._kinds and self._num_streams == 0:
            faults.append(f"{name}: never streamed, so that its events were not looked at")
        return faults

    def _fixed_fields(self, kind: str) -> dict[str, Any]:
        if kind == "streaming":
            return self._example | {"stream": True}
        return self._example if kind == "meeting something" else {}

    def _fire(self, kind: str) -> None:
        mode = GenerationMode.NEGATIVE if kind == "broken" else GenerationMode.POSITIVE

        @given(case=self._operation.as_strategy(generation_mode=mode))
        @settings(
            max_examples=self._num_cases,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink],
        )
        def fire(case: Case[Any]) -> None:
            if kind == "meeting something":
                case.path_parameters = {name: self._subject.known[name] for name in case.path_parameters}
            if isinstance(case.body, dict):
                case.body = self._bound(case.body | self._fixed_fields(kind), is_valid=mode is GenerationMode.POSITIVE)
            response = case.call(base_url=self._subject.url, session=self._subject.session, timeout=60)
            self._statuses[response.status_code] += 1
            self._num_streams += response.headers["content-type"][0].startswith("text/event-stream")
            case.validate_response(response, checks=self._checks)

        fire()

    def _bound(self, body: dict[str, Any], *, is_valid: bool) -> dict[str, Any]:
        """The same body, for the model that is served, asking for a few tokens. What breaks the schema stays."""
        # null means the rest of the context, which takes minutes.
        limits = {name: most for name, most in LIMITS.items() if name in self._optional and body.get(name) is None}
        if not is_valid:
            return body | limits
        lower = {
            name: min(body[name], most)
            for name, most in {**LIMITS, "n": MOST_CHOICES}.items()
            if isinstance(body.get(name), int)
        }
        return {name: value for name, value in body.items() if name != "model"} | limits | lower

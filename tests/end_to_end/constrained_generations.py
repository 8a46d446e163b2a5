"""Generations at a temperature at which the model alone writes nonsense, each held to one of 40 schemas.

By hand: python -m tests.end_to_end.constrained_generations [number]
"""

import json
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema

from engined.config.schema import DEFAULT_MODEL
from tests.end_to_end.server import Server, running
from tests.end_to_end.tool_schemas import load_schemas

TEMPERATURE = 1.5
NUM_STREAMS = 8


def generate(server: Server, number: int, max_tokens: int) -> Counter[str]:
    """So many generations, round robin over the schemas; how often each finish_reason came.

    Raises jsonschema.ValidationError or ValueError for a document that ended with "stop" and is not valid.
    """
    schemas = list(load_schemas().items())
    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        jobs = []
        for seed in range(number):
            name, schema = schemas[seed % len(schemas)]
            jobs.append(pool.submit(_generate_one, server, name, schema, {"seed": seed, "max_tokens": max_tokens}))
        return Counter(job.result() for job in jobs)


def _generate_one(server: Server, name: str, schema: dict[str, Any], fields: dict[str, int]) -> str:
    body = {
        "messages": [{"role": "user", "content": f"Call {name} with short arguments. Answer in JSON."}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "arguments", "schema": schema}},
        "temperature": TEMPERATURE,
        **fields,
    }
    status, answer = server.post("/v1/chat/completions", body)
    assert status == 200, (name, answer)
    choice = answer["choices"][0]
    if choice["finish_reason"] == "stop":
        validate(json.loads(choice["message"]["content"]), schema)
    return str(choice["finish_reason"])


def validate(document: Any, schema: dict[str, Any]) -> None:
    """By the jsonschema package, formats too."""
    validator = jsonschema.Draft202012Validator
    validator(schema, format_checker=validator.FORMAT_CHECKER).validate(document)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, running(DEFAULT_MODEL, Path(folder)) as server:
        print(dict(generate(server, int(sys.argv[1]) if len(sys.argv) > 1 else 200, max_tokens=128)))

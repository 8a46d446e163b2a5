"""The `llm` command line against a real server: by its address alone, and as a configured model."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.server import Server

LLM = str(Path(sys.executable).with_name("llm"))
QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."
GREEDY = ("-o", "temperature", "0")


def run_llm(folder: Path, *arguments: str) -> str:
    """What `llm` prints. Its settings and logs stay in `folder`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "LLM_"))}
    environment |= {"LLM_USER_PATH": str(folder), "OPENAI_API_KEY": "none"}
    result = subprocess.run(
        [LLM, *arguments],
        stdin=subprocess.DEVNULL,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.fixture(scope="module")
def model(default_server: Server) -> str:
    name: str = json.loads(default_server.get("/v1/models")[1])["data"][0]["id"]
    return name


def test_endpoint(default_server: Server, model: str, tmp_path: Path) -> None:
    endpoint = ("openai", "endpoint", f"{default_server.url}/v1")
    assert run_llm(tmp_path, *endpoint, "--models") == model
    assert run_llm(tmp_path, *endpoint, "-m", model, *GREEDY, QUESTION) == ANSWER


def test_configured_models(default_server: Server, model: str, tmp_path: Path) -> None:
    entry = {"model_name": model, "api_base": f"{default_server.url}/v1"}
    entries = [{"model_id": "chat", **entry}, {"model_id": "text", "completion": True, **entry}]
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(entries))  # JSON is YAML too
    assert run_llm(tmp_path, "-m", "chat", *GREEDY, "--no-stream", QUESTION) == ANSWER
    assert "Berlin" in run_llm(tmp_path, "-c", *GREEDY, "What is the capital of Germany?")
    assert "Paris" in run_llm(tmp_path, "-m", "text", *GREEDY, "-o", "max_tokens", "3", "The capital of France is")

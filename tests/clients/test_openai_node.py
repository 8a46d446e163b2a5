"""OpenAI's Node client against a real server. It comes from npm into pytest's cache."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.server import Server

PACKAGE = "openai@6"
ANSWER = "The capital of France is Paris."


@pytest.fixture(scope="module")
def node_folder(request: pytest.FixtureRequest) -> Path:
    """A folder with the client and the script; the tests are skipped where there is no Node or no npm registry."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("there is no node or npm on this machine")
    folder = request.config.cache.mkdir("openai-node")
    if not (folder / "node_modules" / "openai").is_dir():
        command = ["npm", "install", "--no-audit", "--no-fund", "--no-save", "--prefix", str(folder), PACKAGE]
        installed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if installed.returncode != 0:
            pytest.skip(f"npm cannot install {PACKAGE}: {installed.stderr.strip()[-300:]}")
    shutil.copy(Path(__file__).with_name("openai_node.mjs"), folder)
    return folder


def test_openai_node_client(node_folder: Path, default_server: Server) -> None:
    aborted = default_server.metric("engined:request_success_total", finished_reason="abort")
    command = ["node", "openai_node.mjs", f"{default_server.url}/v1"]
    result = subprocess.run(command, cwd=node_folder, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    seen: dict[str, Any] = json.loads(result.stdout)
    assert seen["model"] is True
    assert seen["chat"]["text"] == seen["chatStream"]["text"] == seen["chatHelper"] == ANSWER
    assert seen["response"] == seen["responseHelper"] == ANSWER
    assert seen["chat"]["id"].startswith("req_")
    assert seen["chatStream"]["finishReasons"] == ["stop"]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert seen["chatStream"]["usage"][name] == seen["chat"]["usage"][name]
    assert seen["completion"].startswith(" Paris") and seen["completionStream"] == seen["completion"]
    assert seen["error"] == {
        "isNotFound": True,
        "status": 404,
        "code": "model_not_found",
        "param": "model",
        "type": "invalid_request_error",
    }
    assert seen["call"]["name"] == "get_weather"
    arguments = json.loads(seen["call"]["arguments"])
    assert arguments["city"] in ("Paris", "Rome") and 1 <= arguments["days"] <= 5
    assert seen["ran"] == [arguments] and seen["runnerResult"] == "sunny"
    assert all(call["name"] == "get_weather" and call["arguments"]["days"] >= 1 for call in seen["streamedCalls"])
    assert seen["chunksBeforeAbort"] >= 3, "more of them may have come when it goes away"
    default_server.wait_for_metric("engined:num_requests_running", 0)
    assert default_server.metric("engined:request_success_total", finished_reason="abort") == aborted + 1

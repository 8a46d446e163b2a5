"""GET /metrics: what Prometheus and dashboards that were made for vLLM find there."""

import shutil
import subprocess
from collections.abc import Iterable

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from engined.config.schema import Config, ServerConfig
from tests.frontend.conftest import RunningFrontend, StartFrontend

CHAT = "/v1/chat/completions"
QUESTION = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
WITH_VLLM_NAMES = Config(server=ServerConfig(metrics_vllm_names=True))

DASHBOARD = {
    "E2E Request Latency": ["e2e_request_latency_seconds_bucket", "e2e_request_latency_seconds_sum"],
    "Token Throughput": ["prompt_tokens_total", "generation_tokens_total"],
    "Inter Token Latency": ["inter_token_latency_seconds_bucket", "inter_token_latency_seconds_sum"],
    "Scheduler State": ["num_requests_running", "num_requests_waiting"],
    "Time To First Token Latency": ["time_to_first_token_seconds_bucket", "time_to_first_token_seconds_count"],
    "Cache Utilization": ["kv_cache_usage_perc"],
    "Request Prompt Length": ["request_prompt_tokens_bucket"],
    "Request Generation Length": ["request_generation_tokens_bucket"],
    "Finish Reason": ["request_success_total"],
    "Queue Time": ["request_queue_time_seconds_sum"],
    "Requests Prefill and Decode Time": ["request_prefill_time_seconds_sum", "request_decode_time_seconds_sum"],
    "Max Generation Token in Sequence Group": ["request_max_num_generation_tokens_sum"],
}
"""Every panel of examples/observability/prometheus_grafana/grafana.json of vLLM, and the series that it asks for."""


async def page(frontend: RunningFrontend) -> str:
    async with frontend.client.get("http://engined/metrics") as response:
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return await response.text()


def samples(families: Iterable[Metric]) -> dict[str, dict[str, float]]:
    """By name, and then by the labels as text."""
    result: dict[str, dict[str, float]] = {}
    for family in families:
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()) if name != "le")
            result.setdefault(sample.name, {})[labels] = sample.value
    return result


def check_rules(text: str) -> None:
    """What promtool checks, as far as the format's own library does not: names, types, one set of labels a family."""
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    for family in families:
        assert family.documentation, family.name
        assert family.type in ("counter", "gauge", "histogram"), family.name
        # The parser takes the ending off.
        assert (f"\n{family.name}_total" in text) == (family.type == "counter"), family.name
        assert not family.name.endswith(("_bucket", "_sum", "_count")), family.name
        assert family.name == family.name.lower()
        assert len({frozenset(sample.labels) - {"le"} for sample in family.samples}) == 1, family.name
        if family.type == "histogram":
            bounds = [float(sample.labels["le"]) for sample in family.samples if sample.name.endswith("_bucket")]
            assert bounds == sorted(bounds) and bounds[-1] == float("inf")


async def test_every_panel_of_vllms_dashboard_is_served(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend(config=WITH_VLLM_NAMES)
    _, answer = await frontend.post(CHAT, {**QUESTION, "n": 2})
    text = await page(frontend)
    check_rules(text)
    found = samples(text_string_to_metric_families(text))
    labels = "engine=0,model_name=smol"
    for panel, names in DASHBOARD.items():
        for name in names:
            assert all("model_name=smol" in key and "engine=0" in key for key in found[f"vllm:{name}"]), (panel, name)
            # The same values as under our own name.
            assert list(found[f"vllm:{name}"].values()) == list(found[f"engined:{name}"].values())
    num_tokens = answer["usage"]["completion_tokens"]
    assert found["vllm:generation_tokens_total"][labels] == num_tokens
    assert found["vllm:request_success_total"]["engine=0,finished_reason=stop,model_name=smol"] == 2
    assert found["vllm:request_max_num_generation_tokens_sum"][labels] == num_tokens / 2
    assert found["vllm:request_max_num_generation_tokens_count"][labels] == 1
    phases = ("prefill", "decode", "inference")
    assert [found[f"vllm:request_{phase}_time_seconds_count"][labels] for phase in phases] == [2, 2, 2]
    sums = [found[f"vllm:request_{phase}_time_seconds_sum"][labels] for phase in phases]
    assert sums[0] + sums[1] == pytest.approx(sums[2]) and all(seconds > 0 for seconds in sums)


async def test_the_daemon_and_http_in_numbers(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    await frontend.post(CHAT, QUESTION)
    await frontend.post(CHAT, {**QUESTION, "max_tokens": 0})
    await frontend.get("/nowhere/%0d%0a")
    text = await page(frontend)
    assert "vllm:" not in text
    check_rules(text)
    found = samples(text_string_to_metric_families(text))
    requests = found["engined:http_requests_total"]
    assert requests[f"endpoint={CHAT},status=200"] == 1
    assert requests[f"endpoint={CHAT},status=400"] == 1
    assert requests["endpoint=other,status=404"] == 1
    assert found["engined:ready"] == {"": 1}
    assert found["engined:phase"] == {
        "phase=starting": 0,
        "phase=serving": 1,
        "phase=recovering": 0,
        "phase=stopping": 0,
    }
    assert found["engined:restarts_total"] == {"": 0}
    assert found["engined:log_lines_dropped_total"] == {"": 0}
    assert found["engined:event_loop_lag_seconds"][""] >= 0


async def test_promtool_has_nothing_to_say(start_frontend: StartFrontend) -> None:
    """But that names should hold no colon: vLLM's do, and ours are vLLM's."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: it comes with Debian's package prometheus")
    frontend = await start_frontend(config=WITH_VLLM_NAMES)
    await frontend.post(CHAT, QUESTION)
    text = await page(frontend)
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=20)
    complaints = [line for line in checked.stderr.splitlines() if "should not contain ':'" not in line]
    assert not complaints and "error" not in checked.stdout

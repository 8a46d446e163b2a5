"""`engined status`."""

from collections.abc import Mapping
from typing import Any

import click
import orjson

from engined.cli.client_options import connection_options, make_operator_client
from engined.cli.text import format_seconds


@click.command("status")
@click.option("--json", "as_json", is_flag=True, help="Print all that the server tells, as JSON.")
@connection_options
def command(as_json: bool, url: str | None, uds: str | None, api_key: str | None) -> int:
    """Show how the server is doing: health, model, KV cache, rates.

    Exits with 0 if it takes requests, 1 if it does not, 69 if nobody answers. With API keys it takes one that has the
    scope admin.
    """
    client = make_operator_client(url, uds, api_key)
    status = client.status()
    if as_json:
        click.echo(orjson.dumps(status, option=orjson.OPT_INDENT_2))
    else:
        for name, text in _lines(status, str(client.target)).items():
            click.echo(f"{name:<9} {text}")
    return 0 if status["status"] == "ready" else 1


def _lines(status: Mapping[str, Any], address: str) -> dict[str, str]:
    load, versions = status["load"], status["versions"]
    hit_rate = load["prefix_cache_hit_rate"]
    return {
        "server": f"{address}, engined {versions['engined']}, Python {versions['python']}",
        "health": _health(status),
        "uptime": f"{format_seconds(status['uptime_s'])}, {status['restarts']} restarts",
        "model": f"{', '.join(status['models'])} ({status['runner']})",
        "engine": _engine(status["engine"]),
        "requests": f"{load['live_requests']} under way: {load['running']} sequences run, {load['waiting']} wait",
        "KV cache": f"{load['kv_cache_usage']:.1%} in use, "
        f"{'-' if hit_rate is None else f'{hit_rate:.1%}'} of prompt tokens found, {load['preemptions']} preemptions",
        "rates": f"{load['prompt_tokens_per_s']:.1f} prompt tokens/s, "
        f"{load['generated_tokens_per_s']:.1f} generated tokens/s, "
        f"{load['requests_per_s']:.2f} requests/s, in the last minute",
    }


def _health(status: Mapping[str, Any]) -> str:
    if status["status"] == "ready":
        return f"ready ({status['phase']})"
    return f"not ready ({status['phase']}): {status['reason']}"


def _engine(engine: Mapping[str, Any] | None) -> str:
    if engine is None:
        return "none yet"
    num_tokens = engine["num_kv_blocks"] * engine["block_size"]
    weights = "" if engine["quantization"] == "none" else f"weights of {engine['quantization']}, "
    return (
        f"pid {engine['pid']}, {weights}{engine['dtype']}, "
        f"KV cache of {num_tokens} tokens in {engine['kv_cache_dtype']}, context {engine['max_model_len']}"
    )

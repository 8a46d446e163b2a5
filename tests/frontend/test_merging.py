"""Steps that come faster than the frontend handles them leave together, for a bounded time, whole and in order."""

import asyncio
import json
from typing import Any

import pytest

from engined.frontend import async_llm
from engined.ipc.frame import MessageType
from engined.protocol.engine import EngineCoreOutputs, Finished, FinishReason
from engined.tokenization.tokenizer import ModelTokenizer
from tests.frontend.conftest import RunningFrontend, StartFrontend

TEXT = 'The "cost" of a step: 1 2 3, ünïcödé 👩‍👩‍👧 and\n\tlines. ' * 4
NUM_STREAMS = 5
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "x"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
]


def burst(frontend: RunningFrontend, token_ids: list[int]) -> None:
    """The rest of all answers, a frame for each step, written before anybody can read the first."""
    request_ids = [request.request_id for request in frontend.engine.added]
    for position, token_id in enumerate(token_ids):
        is_last = position == len(token_ids) - 1
        ends = dict.fromkeys(request_ids, Finished(reason=FinishReason.LENGTH)) if is_last else {}
        outputs = EngineCoreOutputs(
            request_ids=request_ids, new_token_ids=[[token_id] for _ in request_ids], finished=ends
        )
        frontend.engine.send(MessageType.OUTPUTS, outputs)


@pytest.mark.parametrize(("route", "body"), BODIES)
@pytest.mark.parametrize("merges", [True, False])
async def test_a_burst_of_steps(
    start_frontend: StartFrontend,
    tokenizer: ModelTokenizer,
    monkeypatch: pytest.MonkeyPatch,
    route: str,
    body: dict[str, Any],
    merges: bool,
) -> None:
    monkeypatch.setattr(async_llm, "MAX_MERGE_SECONDS", 60.0 if merges else 0.0)
    token_ids = tokenizer.encode(TEXT)
    frontend = await start_frontend(script=lambda request: token_ids)
    frontend.engine.stall_after = 1
    body = {**body, "max_tokens": len(token_ids), "stream_options": {"include_usage": True}}
    streams = [asyncio.create_task(frontend.stream(route, body)) for _ in range(NUM_STREAMS)]
    async with asyncio.timeout(20):
        while await frontend.metric("generation_tokens_total") < NUM_STREAMS:
            await asyncio.sleep(0.01)
        burst(frontend, token_ids[1:])
        answers = await asyncio.gather(*streams)
    for *events, usage, done in answers:
        choices = [json.loads(event)["choices"][0] for event in events]
        texts = [choice["text"] if "text" in choice else choice["delta"].get("content", "") for choice in choices]
        assert "".join(texts) == TEXT and done == "[DONE]"
        assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]
        assert json.loads(usage)["usage"]["completion_tokens"] == len(token_ids)
        # Tokens without text of their own, as the first of an emoji, make no event.
        assert len(events) < len(token_ids) / 4 if merges else len(events) > len(token_ids) / 2

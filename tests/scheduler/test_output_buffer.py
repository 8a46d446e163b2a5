"""Outputs go to the right client, once."""

from engined.protocol.engine import EngineCoreRequest, Finished, FinishReason, SchedulerStats, Started, TokenLogprobs
from engined.protocol.sampling import SamplingParams
from engined.scheduler.output_buffer import OutputBuffer
from engined.scheduler.request import Request

STATS = SchedulerStats(
    num_running=0,
    num_waiting=0,
    kv_cache_usage=0.0,
    num_preemptions=0,
    prefix_cache_queries=0,
    prefix_cache_hits=0,
)
ENTRY = TokenLogprobs(token_ids=[5], logprobs=[-1.0], rank=1)
ENDED = Finished(reason=FinishReason.STOP)


def make(name: str, client_index: int) -> Request:
    message = EngineCoreRequest(
        request_id=name, prompt_token_ids=[1], sampling=SamplingParams(max_tokens=1), arrival_time=0.0
    )
    request = Request(message, client_index, None)
    request.pending_start = Started(scheduled_time=1.0, num_cached_tokens=0)
    return request


def test_each_client_gets_its_own_and_only_once() -> None:
    buffer = OutputBuffer()
    buffer.add_tokens(make("a", 0), [5], None)
    buffer.add_tokens(make("b", 1), [6], [ENTRY])
    buffer.add_tokens(make("c", 0), [7, 8], None)
    taken = buffer.take(STATS, 2.0)
    assert taken.keys() == {0, 1}
    assert (taken[0].request_ids, taken[0].new_token_ids, taken[0].logprobs) == (["a", "c"], [[5], [7, 8]], {})
    assert (taken[1].request_ids, taken[1].new_token_ids, taken[1].logprobs) == (["b"], [[6]], {"b": [ENTRY]})
    assert taken[0].stats is STATS and taken[0].timestamp == 2.0
    assert buffer.take(STATS, 3.0) == {}


def test_started_goes_with_the_first_news_whatever_it_is() -> None:
    buffer = OutputBuffer()
    by_tokens, by_prompt, by_end = make("a", 0), make("b", 0), make("c", 0)
    for _ in range(2):
        buffer.add_tokens(by_tokens, [5], None)
        buffer.add_prompt_logprobs(by_prompt, [ENTRY])
        buffer.add_finished(by_end, ENDED)
        counts = [len(outputs.started) for outputs in buffer.take(STATS, 0.0).values()]
        assert counts in ([3], [0])
    assert counts == [0]


def test_a_dropped_client_hears_nothing() -> None:
    buffer = OutputBuffer()
    buffer.add_finished(make("a", 0), ENDED)
    buffer.add_finished(make("b", 1), ENDED)
    buffer.drop_client(0)
    buffer.drop_client(5)
    assert buffer.take(STATS, 0.0).keys() == {1}

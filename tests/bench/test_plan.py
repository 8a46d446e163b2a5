"""What is drawn for a run: the same from the same seed, as long and as often as the workload says."""

from itertools import pairwise
from statistics import mean, median

import orjson
import pytest

from engined.bench.plan import Draw, plan_arrivals, plan_requests, plan_turns
from engined.bench.rounds import order
from engined.bench.server import parse_server
from engined.bench.workload import WORKLOADS, ClosedLoop, Conversations, LogNormal, OpenLoop, override, points
from engined.errors import ConfigError

POISSON = OpenLoop(rate=(5.0,), num_requests=2000, input=1, output=1)


def test_poisson_arrivals_are_those_of_their_seed() -> None:
    times = plan_arrivals(POISSON, 5.0, Draw("one", 1000))
    assert times == plan_arrivals(POISSON, 5.0, Draw("one", 1000))
    assert times != plan_arrivals(POISSON, 5.0, Draw("two", 1000))
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert len(times) == 2000 and times[0] == 0
    assert mean(gaps) == pytest.approx(1 / 5, rel=0.1)
    assert median(gaps) == pytest.approx(0.693 / 5, rel=0.1), "waiting times of a Poisson process are exponential"


def test_bursts_come_together_at_the_same_mean_rate() -> None:
    workload = override(POISSON, {"burst": 4, "num_requests": 10})
    assert isinstance(workload, OpenLoop)
    assert plan_arrivals(workload, 2.0, Draw("any", 1000)) == [0, 0, 0, 0, 2, 2, 2, 2, 4, 4]


def test_prompts_share_their_prefix_only_and_are_those_of_their_seed() -> None:
    workload = ClosedLoop(concurrency=(1,), prefix=50, input=30, output=7)
    requests = plan_requests(workload, 3, Draw("one", 1000))
    assert requests == plan_requests(workload, 3, Draw("one", 1000))
    assert len({tuple(request.prompt[:50]) for request in requests}) == 1
    assert len({tuple(request.prompt[50:]) for request in requests}) == 3
    assert {len(request.prompt) for request in requests} == {80}
    assert all(100 <= token_id < 1000 for request in requests for token_id in request.prompt)
    body = orjson.loads(requests[0].body("m"))
    assert body["prompt"] == requests[0].prompt and body["max_tokens"] == 7
    assert (body["temperature"], body["ignore_eos"], body["stream_options"]) == (0, True, {"include_usage": True})


def test_drawn_lengths_keep_their_limits_and_their_median() -> None:
    draw, length = Draw("lengths", 1000), LogNormal(median=100, sigma=1.0, maximum=300)
    lengths = [draw.length(length) for _ in range(2000)]
    assert min(lengths) >= 1 and max(lengths) == 300
    assert median(lengths) == pytest.approx(100, rel=0.1)


def test_a_conversation_is_a_prefix_for_all_and_new_tokens_for_each_turn() -> None:
    workload = WORKLOADS["w5"]
    assert isinstance(workload, Conversations)
    prefix, conversations = plan_turns(workload, 8, Draw("one", 49_000))
    assert len(prefix) == 600
    assert [len(turns) for turns in conversations] == [6] * 8
    assert len({tuple(turn) for turns in conversations for turn in turns}) == 48


def test_servers_change_their_order_with_every_round() -> None:
    servers = [parse_server(f"{name}=unix:/{name}", None) for name in "ab"]
    assert "".join(server.name for round in range(4) for server in order(servers, round)) == "abbaabba"


def test_values_of_a_named_workload_can_be_changed_but_none_is_ignored() -> None:
    changed = override(WORKLOADS["w1"], {"concurrency": (2,), "output": 5})
    assert [point.label for point in points(changed)] == ["c=2"]
    assert [point.label for point in points(WORKLOADS["w4"])] == ["2/s"]
    with pytest.raises(ConfigError, match="--num-requests means nothing to this workload, a Conversations"):
        override(WORKLOADS["w5"], {"num_requests": 5})

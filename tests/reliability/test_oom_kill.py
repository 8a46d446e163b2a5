"""R33: the kernel's OOM killer ends a process of the model; the daemon loses its requests, and nothing else."""

import time

import pytest

from tests.reliability.clients import OpenRequest, Prober
from tests.reliability.fleet import Fleet
from tests.reliability.memory_group import memory_group
from tests.reliability.test_kill_matrix import RESTART, TERMINAL, answer


@pytest.mark.parametrize("role", ["engine", "rank 1"])
def test_the_kernel_kills_for_want_of_memory(fleet: Fleet, role: str) -> None:
    with memory_group() as group:
        harmed = fleet.ready(role)
        expected, frontend, victim = answer(harmed), harmed.pid("frontend"), harmed.pid(role)
        requests = [OpenRequest(harmed.port, stream=True), OpenRequest(harmed.port, stream=False)]
        requests[0].wait_for_events(3)
        with Prober(harmed.port) as prober:
            group.take(victim)
            while harmed.has_pid(victim):
                assert any(not request.endings for request in requests), "it got by with what it had"
                time.sleep(0.002)
            killed_at = time.monotonic()
            assert group.num_killed() == 1
            for request in requests:
                request.join()
                assert [ending[:22] for ending in request.endings] == ["error: the engine died"]
                assert request.ended_at - killed_at <= TERMINAL
            prober.wait_for(503, killed_at - 0.5, 5)
            seconds = prober.wait_for(200, time.monotonic(), RESTART)
            ended = max(request.ended_at for request in requests) - killed_at
            print(f"{role}: requests ended after {ended:.2f} s, ready again {seconds:.2f} s later")
            assert prober.num_refused() == 0
        assert answer(harmed) == expected
        assert harmed.pid("frontend") == frontend and harmed.pid(role) != victim
        assert "was killed by SIGKILL" in harmed.log()
        fleet.give_back(harmed)

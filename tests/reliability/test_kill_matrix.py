"""Who dies or stops, in which phase, and how: each time the same few things must be true. See cases.py.

CI runs a part in which every role is harmed in every phase; `-m reliability_full` runs the whole matrix.
"""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.reliability.cases import CI, MATRIX, RANKS_OF, STARTING, Case
from tests.reliability.clients import OpenRequest, Prober
from tests.reliability.daemon import Daemon, num_fds
from tests.reliability.fleet import FRONTEND_BUDGET, IDLE_BUDGET, SHUTDOWN_TIMEOUT, STEP_TIMEOUT, Fleet, end

NOTICE = 0.5
"""Seconds until a death is noticed, and /readyz says so."""
TERMINAL = 1.0
"""Seconds until every open request has its terminal event."""
GONE = 2.0
"""Seconds until no process is left of a daemon whose supervisor was killed."""
HANG_MARGIN = 3.5
"""Seconds beyond a limit in which a hang is found (a look a second), its stacks are taken, and the process is ended."""
RESTART = 40.0
"""Seconds for a restart on a machine that has other things to do; what it took is printed."""
START_LIMIT = 40.0
"""Seconds in which a process must have begun to load, in cases that wait for it; the imports of a busy machine fit."""
LOAD_LIMIT = 8.0
"""Seconds without progress of a process that loads; more than FRONTEND_BUDGET, for the victim must be found first."""
PROMPT = "The quick brown fox"
ANSWER_TOKENS = 20


def full(cases: list[Case]) -> list[object]:
    return [pytest.param(case, id=str(case)) for case in cases]


@pytest.mark.parametrize("case", full(CI))
def test_part(fleet: Fleet, case: Case) -> None:
    run(fleet, case)


@pytest.mark.reliability_full
@pytest.mark.parametrize("case", full(MATRIX))
def test_full(fleet: Fleet, case: Case) -> None:
    run(fleet, case)


def test_the_part_covers_every_role_and_phase_and_every_action() -> None:
    roles = {case.role for case in CI}
    assert {(case.role, case.phase) for case in CI} == {(c.role, c.phase) for c in MATRIX if c.role in roles}
    for action in {case.action for case in MATRIX}:
        assert len({case.phase for case in CI if case.action == action}) >= 3
    assert set(CI) <= set(MATRIX)


def test_a_rank_that_stops_at_rest_is_found_at_its_limit(fleet: Fleet) -> None:
    """R5. Nothing asks a rank at rest for anything; the core tells of its silence."""
    run(fleet, Case("rank 1", "idle", "SIGSTOP"))


@pytest.mark.alone
def test_an_idle_daemon_ends_soon(fleet: Fleet) -> None:
    """R13."""
    harmed = fleet.ready("engine")
    time.sleep(1.5)  # not in the moment in which an idle engine gives its memory back
    seconds = end(harmed)
    print(f"ended after {seconds:.2f} s")
    assert seconds <= 2.0


def run(fleet: Fleet, case: Case) -> None:
    if case.phase in STARTING:
        harm_while_starting(fleet, case)
    elif case.phase == "drain":
        harm_while_draining(fleet, case)
    else:
        harm_while_serving(fleet, case)


def harm_while_starting(fleet: Fleet, case: Case) -> None:
    """R1, R6, R7: before it has ever served, a daemon that loses a child ends, and says whom it lost."""
    pause = f"{stage(case)} {case.phase} 1 pause"
    is_waiting = case.action == "SIGSTOP" and case.role != "supervisor"
    limits = f"\nset starting_budget {START_LIMIT}\nset loading_budget {LOAD_LIMIT}" if is_waiting else ""
    harmed = fleet.start(pause + limits, *RANKS_OF.get(case.role, ()))
    harmed.wait_struck(pause)
    if case.role == "supervisor" and case.action == "SIGSTOP":
        stop_the_supervisor_for_a_while(harmed)
        harmed.wait_ready()
        (harmed.folder / "resume").unlink()
        fleet.keep(harmed)
        return
    harmed_at = harmed.harm(case.role, case.action)
    if case.role == "rank 1" and case.phase == "handshake":
        # Its core has loaded and goes on: it finds out, and is started again like one that has served.
        harmed.resume()
        # First the restart: the old core may seem to serve for a moment until then.
        harmed.wait_log("EngineCore 0 is started again", RESTART + STEP_TIMEOUT + HANG_MARGIN)
        harmed.wait_ready(RESTART)
        fleet.keep(harmed)
        return
    limit = (START_LIMIT if case.phase == "spawn" else LOAD_LIMIT) + HANG_MARGIN if is_waiting else 1.0
    code = harmed.wait_for_exit(limit + 5.0)
    print(f"{case}: exit code {code} after {time.monotonic() - harmed_at:.2f} s")
    if case.role == "supervisor":
        assert code == (-signal.SIGKILL if case.action == "SIGKILL" else 0)
    else:
        assert code not in (0, 75)
        assert names_the_victim(case, harmed.log()), harmed.log()
        if case.action != "SIGSTOP":
            assert noticed_after(harmed, case, harmed_at) <= 1.0
    harmed.check_nothing_is_left(GONE)
    assert "ready after" not in harmed.log()


def harm_while_serving(fleet: Fleet, case: Case) -> None:
    """R1 to R5, R9, R31, R34: what is open ends once, the others live on, and all is well again."""
    harmed = fleet.ready(case.role)
    survivors = {role: harmed.pid(role) for role in ("supervisor", "frontend", "engine") if survives(role, case)}
    num_open_fds = {role: num_fds(pid) for role, pid in survivors.items()}
    expected = answer(harmed)
    requests = bring_to_phase(harmed, case)
    victim = harmed.pid(case.role)
    with Prober(harmed.port) as prober:
        harmed_at = harmed.harm(case.role, case.action)
        if case.role == "supervisor" and case.action == "SIGSTOP":
            time.sleep(1.0)
            os.kill(harmed.pid("supervisor"), signal.SIGCONT)
            harmed.resume()
            [request.join() for request in requests]
            assert [request.endings for request in requests] == [["length"]] * len(requests)
            assert prober.num_refused() == 0
        elif case.role == "supervisor":
            check_endings(case, requests, harmed_at, TERMINAL)
            harmed.wait_for_exit(5)
            harmed.check_nothing_is_left(GONE)
            return
        else:
            check_recovery(harmed, case, requests, prober, harmed_at)
    if case.action == "SIGSTOP" and case.role != "supervisor":
        wait_for_successor(harmed, victim)
    assert answer(harmed) == expected
    for role, pid in survivors.items():
        assert harmed.pid(role) == pid, f"the {role} was restarted too"
        # A link and a connection may be on their way out.
        assert num_fds(pid) <= num_open_fds[role] + 2, f"the {role} has lost track of its descriptors"
    (harmed.folder / "resume").unlink(missing_ok=True)
    fleet.give_back(harmed)


def check_recovery(harmed: Daemon, case: Case, requests: list[OpenRequest], prober: Prober, harmed_at: float) -> None:
    """One child died: its requests end, nobody is refused meanwhile, and it comes back."""
    found = hang_limit(case) if case.action == "SIGSTOP" else 0.0
    if case.role == "frontend":
        # Its engine goes on, if it was held up only for us.
        harmed.resume()
    check_endings(case, requests, harmed_at, found + TERMINAL)
    # The look that follows the end of the victim must not be taken for the one before it.
    ended_at = max([request.ended_at for request in requests], default=harmed_at + found)
    if case.role != "frontend":
        seconds = prober.wait_for(503, harmed_at, found + 5)
        assert seconds <= found + NOTICE, f"/readyz said 503 after {seconds:.2f} s"
        ended_at = max(ended_at, harmed_at + seconds)
    harmed.resume()
    seconds = prober.wait_for(200, max(ended_at, harmed_at) + 0.1, RESTART)
    ended = max([request.ended_at - harmed_at for request in requests], default=0.0)
    print(f"{case}: requests ended after {ended:.2f} s, ready again {seconds:.2f} s later")
    assert prober.num_refused() == 0


def wait_for_successor(harmed: Daemon, victim: int) -> None:
    """A frontend that was woken to show its stacks may have answered once more, before they were saved and it ended."""
    deadline = time.monotonic() + 5
    while Path(f"/proc/{victim}").exists():
        assert time.monotonic() < deadline, "what hung is still there"
        time.sleep(0.02)
    assert list((harmed.folder / "engined" / "crash").glob("*.txt")), "no stacks were kept"
    harmed.wait_ready(RESTART)


def harm_while_draining(fleet: Fleet, case: Case) -> None:
    """R14, R15, R31: the end of a daemon that loses a process while it ends is the end, and no later than planned."""
    harmed = fleet.ready(case.role)
    requests = bring_to_phase(harmed, case)
    harmed.server.wait_for_metric("engined:num_requests_running", 2)
    harmed.server.process.terminate()
    harmed.wait_log("stopping: 2 sequences are running", 5)
    harmed_at = harmed.harm(case.role, case.action)
    if case.role == "supervisor" and case.action == "SIGSTOP":
        time.sleep(1.0)
        os.kill(harmed.server.pid, signal.SIGCONT)
    is_waiting = case.action == "SIGSTOP" and case.role != "supervisor"
    # A frontend that is stopped cannot end its requests; the drain limit and its margin end the frontend.
    limit = SHUTDOWN_TIMEOUT + HANG_MARGIN + 3.0 if is_waiting or case.action == "SIGSTOP" else TERMINAL
    check_endings(case, requests, harmed_at, limit)
    code = harmed.wait_for_exit(SHUTDOWN_TIMEOUT + HANG_MARGIN + 5.0)
    print(f"{case}: exit code {code} after {time.monotonic() - harmed_at:.2f} s")
    harmed.check_nothing_is_left(GONE)


def bring_to_phase(harmed: Daemon, case: Case) -> list[OpenRequest]:
    """Two requests, one of them streamed, are where the case wants them."""
    if case.phase == "idle":
        time.sleep(0.2)
        return []
    pause = ""
    if case.phase in ("prefill", "decode"):
        pause = f"{stage(case)} {case.phase} {1 if case.phase == 'prefill' else 5} pause"
        forget(harmed, pause)
        harmed.plan(pause)
        # The plan is read each hundredth of a second.
        time.sleep(0.1)
    requests = [OpenRequest(harmed.port, stream=True), OpenRequest(harmed.port, stream=False)]
    if pause:
        harmed.wait_struck(pause)
    else:
        requests[0].wait_for_events(3)
    harmed.note_pids()
    return requests


def check_endings(case: Case, requests: list[OpenRequest], harmed_at: float, limit: float) -> None:
    """Each request ended once and in time: with an error, or by the end of the connection if its server is gone."""
    for request in requests:
        request.join(limit + 10.0)
        assert request.ended_at - harmed_at <= limit, f"{request.endings} after {request.ended_at - harmed_at:.2f} s"
        assert len(request.endings) <= 1, request.endings
        if case.role in ("engine", "rank 1") and case.phase != "drain":
            assert request.endings and request.endings[0].startswith("error: the engine died"), request.endings
        elif case.role in ("engine", "rank 1") or (case.action == "SIGSTOP" and case.role == "supervisor"):
            assert request.endings, "the request was cut"
        else:
            assert request.is_cut or request.endings == ["length"]


def survives(role: str, case: Case) -> bool:
    """Whether a process of that role must be the same one afterwards."""
    if case.role == "supervisor":
        return case.action == "SIGSTOP"
    return role != case.role and not (case.role == "rank 1" and role == "engine")


def stage(case: Case) -> str:
    """The process that is held up to keep the daemon in its phase."""
    if case.role == "rank 1" and case.phase != "handshake":
        return "Worker_TP1"
    return "frontend" if case.role == "frontend" and case.phase == "spawn" else "EngineCore"


def hang_limit(case: Case) -> float:
    """Seconds until a stopped process must have been found and ended."""
    if case.role == "frontend":
        return FRONTEND_BUDGET + HANG_MARGIN
    return (IDLE_BUDGET if case.phase == "idle" else STEP_TIMEOUT) + HANG_MARGIN


def names_the_victim(case: Case, log: str) -> bool:
    name = {"frontend": "frontend 0", "engine": "EngineCore 0", "rank 1": "Worker_TP1"}[case.role]
    said = {"SIGKILL": "was killed by SIGKILL", "exit": "exited with code 0", "SIGSTOP": "hung: no sign of life"}
    last_line = log.splitlines()[-1]
    if case.role == "rank 1" and case.action == "SIGSTOP":
        return "EngineCore 0 hung" in last_line or "not ready" in last_line
    return f"{name} {said[case.action]}" in last_line


def noticed_after(harmed: Daemon, case: Case, harmed_at: float) -> float:
    """Seconds until the death was in the log. Its clock is the wall's, so both are read here."""
    offset = time.time() - time.monotonic()
    for line in harmed.log().splitlines():
        if "WARNING supervisor" in line:
            stamp = line[:23]
            wall = time.mktime(time.strptime(stamp[:19], "%Y-%m-%d %H:%M:%S")) + float(stamp[19:])
            return wall - offset - harmed_at
    raise AssertionError(f"the death is not in the log: {case}\n{harmed.log()}")


def stop_the_supervisor_for_a_while(harmed: Daemon) -> None:
    os.kill(harmed.server.pid, signal.SIGSTOP)
    harmed.resume()
    time.sleep(1.0)
    os.kill(harmed.server.pid, signal.SIGCONT)


def forget(harmed: Daemon, line: str) -> None:
    """Let a fault that has struck strike again."""
    (harmed.folder / "resume").unlink(missing_ok=True)
    harmed.forget(line)


def answer(harmed: Daemon) -> str:
    """A greedy answer, which must always be the same."""
    body = {"prompt": PROMPT, "max_tokens": ANSWER_TOKENS, "ignore_eos": True, "temperature": 0}
    text: str = harmed.server.complete(**body)["choices"][0]["text"]
    return text

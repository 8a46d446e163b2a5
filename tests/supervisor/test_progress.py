"""A start that moves on is left alone however long it takes, and says so without filling the log."""

import itertools

from tests.supervisor.test_supervisor import SERVE, Start, start

__all__ = ["start"]  # the fixture


def test_a_slow_load_that_moves_is_never_ended(start: Start) -> None:
    """R7, the other half: it takes five seconds, of which it may be silent for three."""
    daemon = start(SERVE, {"behaviour": "slow"}, budget=3.0)
    assert daemon.process.stdout is not None
    said = list(itertools.takewhile(lambda line: not line.startswith("ready "), daemon.process.stdout))
    assert sum("EngineCore 0: loading weights: 19 of 20 MB" in line for line in said) == 1
    lines = [line for line in daemon.log.splitlines() if "EngineCore 0: " in line]
    assert len([line for line in lines if "loading weights" in line]) == 1, lines
    assert len([line for line in lines if "warming up" in line]) == 1 and "no sign of life" not in daemon.log

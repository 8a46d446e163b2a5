"""The daemon of one command: how long its start may take."""

import asyncio
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from engined import faults
from engined.cli.private_daemon import PrivateDaemon
from engined.config.schema import CacheConfig, Config, ModelConfig, ParallelConfig
from engined.errors import StartupError
from tests.end_to_end.server import descendants
from tests.reliability import tiny_model

TIMEOUT = 8.0
"""A busy machine may keep a process waiting for some seconds."""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    model = tiny_model.make(tmp_path / "model")
    return Config(
        model=ModelConfig(model=str(model)),
        cache=CacheConfig(kv_cache_memory=8 << 20),
        parallel=ParallelConfig(startup_timeout=TIMEOUT),
    )


async def test_a_start_that_takes_long_and_lives_is_waited_for(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own children have the limit; the daemon, whose loop turns, has none."""
    slow = f"EngineCore load 1 delay={TIMEOUT + 1}\n"
    (tmp_path / "plan").write_text(slow + "set starting_budget 60\nset loading_budget 60\n")
    monkeypatch.setenv(faults.VARIABLE, str(tmp_path))
    with PrivateDaemon(config) as daemon:
        started = time.monotonic()
        await daemon.until_ready()
        assert time.monotonic() - started > TIMEOUT + 1


async def test_a_daemon_that_gives_no_sign_of_life_is_given_up(config: Config) -> None:
    config = replace(config, parallel=ParallelConfig(startup_timeout=2.0))
    before = set(descendants(os.getpid()))
    with PrivateDaemon(config) as daemon:
        [pid] = set(descendants(os.getpid())) - before
        waiting = asyncio.create_task(daemon.until_ready())
        await asyncio.sleep(0.1)
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(StartupError, match=r"the private engined gave no sign of life for \d+ s"):
            await waiting
        os.kill(pid, signal.SIGCONT)

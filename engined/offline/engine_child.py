"""One engine core as a child of the caller's process, and the link to it. Runs on the loop of `EngineThread`.

It is what the supervisor and a frontend are in a daemon, without the HTTP: the same child, started, watched and ended
in the same way.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from engined.config.schema import Config
from engined.errors import EngineDeadError, StartupError
from engined.frontend.async_llm import AsyncLLM
from engined.frontend.metrics import Metrics
from engined.frontend.serving.build import build_serving_context
from engined.frontend.serving.context import ServingContext
from engined.ipc.paths import RuntimeDirectory
from engined.process.launch import ChildProcess, describe_exit
from engined.supervisor.children import Deployment, core_spec
from engined.supervisor.run import ServingPlan

_STOP_TIMEOUT = 3.0
"""Seconds between SIGTERM and SIGKILL."""
_LOOK_INTERVAL = 1.0
"""Seconds between two looks at how a core that loads is doing."""
_LAST_WORDS_TIMEOUT = 5.0
"""Seconds that a core gets to end, so that its cause is known, once its link is down."""


async def run_engine(config: Config, plan: ServingPlan, on_ready: Callable[[ServingContext], None]) -> None:
    """Start a core, say when it serves, and run until cancelled; the core has ended when this returns.

    Raises StartupError if it did not come up, EngineDeadError with the cause if it died later.
    """
    with RuntimeDirectory() as directory:
        socket_path = directory.socket_path("engine-0")
        with _running_core(config, plan, socket_path) as core:
            # The core loads meanwhile.
            context = build_serving_context(config, plan.model_info, Metrics(), str(socket_path))
            try:
                await _connect(context.engine, core, config.parallel.startup_timeout)
                on_ready(context)
                await _serve(context.engine, core)
            finally:
                context.close()


@contextmanager
def _running_core(config: Config, plan: ServingPlan, socket_path: Path) -> Iterator[ChildProcess]:
    deployment = Deployment(
        config=config,
        model_info=plan.model_info,
        plan=plan.memory,
        num_threads=plan.num_threads,
        engine_socket=socket_path,
    )
    core = ChildProcess.start(core_spec(deployment))
    try:
        yield core
    finally:
        core.stop(_STOP_TIMEOUT)
        core.close()


async def _connect(engine: AsyncLLM, core: ChildProcess, timeout: float) -> None:
    """Wait until the core serves. It may die before there is a link, so its end is watched too."""
    connecting = asyncio.create_task(engine.connect())
    ending = asyncio.create_task(_wait_for_end(core))
    tasks = (connecting, ending)
    try:
        done, doing = await _wait_while_it_moves(tasks, core, timeout)
        if not done:
            cause = f"{core.name} was not ready after {timeout:g} s without progress{doing}"
            raise StartupError(f"{cause}: raise startup_timeout")
        if ending in done or connecting.exception() is not None:
            cause = await _cause_of_death(core, "it closed its link while it was loading the model")
            raise StartupError(cause, core.failure.exit_code if core.failure is not None else StartupError.exit_code)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _wait_while_it_moves(
    tasks: Collection[asyncio.Task[None]], core: ChildProcess, timeout: float
) -> tuple[set[asyncio.Task[None]], str]:
    """The first of `tasks` that are done; none if the core gave no sign of life for `timeout` seconds. Also what the
    core said last that it does, in brackets."""
    doing = ""
    while True:
        for report in core.read_status():
            doing = f" (it was {report.text})" if report.kind == "progress" else ""
        remaining = timeout - (time.monotonic() - core.heartbeat.read().time)
        if remaining <= 0:
            return set(), doing
        done, _ = await asyncio.wait(tasks, timeout=min(remaining, _LOOK_INTERVAL), return_when=asyncio.FIRST_COMPLETED)
        if done:
            return done, doing


async def _serve(engine: AsyncLLM, core: ChildProcess) -> None:
    try:
        await engine.run_connected()
    except EngineDeadError as error:
        raise EngineDeadError(f"the engine died: {await _cause_of_death(core, str(error))}") from None


async def _cause_of_death(core: ChildProcess, otherwise: str) -> str:
    """What the core said of its end, else how it ended; `otherwise` if it has not ended at all."""
    try:
        await asyncio.wait_for(_wait_for_end(core), _LAST_WORDS_TIMEOUT)
    except TimeoutError:
        return otherwise
    core.read_status()
    if core.failure is not None:
        return core.failure.text
    code = core.poll()
    assert code is not None
    return f"{describe_exit(core.name, code)} and said no cause"


async def _wait_for_end(core: ChildProcess) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(core.pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(core.pidfd)

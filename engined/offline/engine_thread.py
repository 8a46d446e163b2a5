"""The background thread in which an offline engine's event loop runs. Caller's process; one for each `LLM`.

A loop of its own works whether or not the caller has one running, as a notebook has. The thread also starts the child:
the kernel ties the child's death signal to the thread that started it, and this one lives as long as the engine.
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, InvalidStateError, wait
from typing import Any, Generic, TypeVar

from engined.config.schema import Config
from engined.errors import EngineDeadError, RequestError
from engined.frontend.serving.context import ServingContext
from engined.offline.engine_child import run_engine
from engined.supervisor.run import ServingPlan

T = TypeVar("T")

Work = Callable[[ServingContext], Coroutine[Any, Any, T]]


class EngineThread:
    """One engine and the thread that talks to it. Callers' threads use `start`, `call` and `close`."""

    def __init__(self, config: Config, plan: ServingPlan) -> None:
        self._config = config
        self._plan = plan
        self._pid = os.getpid()
        self._looping: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = Future()
        self._started: Future[ServingContext] = Future()
        self._calls: set[_Call[Any]] = set()
        self._has_ended = False
        self._end_cause: Exception = EngineDeadError("this LLM is closed: make a new one")
        self._thread = threading.Thread(target=self._run, name="engined engine", daemon=True)

    def start(self) -> None:
        """Start the engine and wait until it serves. Raises StartupError, ModelError or ConfigError."""
        self._thread.start()
        self._started.result()

    def call(self, work: Work[T]) -> T:
        """Run `work` on the engine's loop and wait for its result.

        An exception that reaches the waiting caller, Ctrl-C above all, cancels the work: what it runs in the engine is
        aborted before this returns. Raises EngineDeadError if the engine is gone or goes meanwhile.
        """
        if os.getpid() != self._pid:
            raise EngineDeadError("this LLM was made in another process: make it in the process that uses it")
        context = self._started.result()
        call = _Call(work)
        self._calls.add(call)
        # Checked after it was added, so that the end of the thread either sees the call or is seen here.
        if self._has_ended:
            call.fail(self._end_cause)
        try:
            self._call_soon(call.begin, context)
            return call.future.result()
        except BaseException as error:
            self._call_soon(call.cancel)
            wait([call.future])
            if _tells_of_a_dead_engine(error):
                # The thread is about to end, and then knows the cause.
                self._thread.join()
                raise self._end_cause from None
            raise
        finally:
            self._calls.discard(call)

    def close(self) -> None:
        """End the engine; what runs is aborted, and calls that wait raise EngineDeadError. Idempotent."""
        # A copy of this object in a forked child must not end the parent's engine.
        if os.getpid() != self._pid or not self._thread.is_alive():
            return
        _, main_task = self._looping.result()
        self._call_soon(main_task.cancel)
        # The garbage collector may call this in any thread.
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _call_soon(self, function: Callable[..., object], *arguments: object) -> None:
        loop, _ = self._looping.result()
        with contextlib.suppress(RuntimeError):  # the loop has ended, and has failed all calls
            loop.call_soon_threadsafe(function, *arguments)

    def _run(self) -> None:
        """The thread's life. Whatever ends it is told to those who wait."""
        try:
            with contextlib.suppress(asyncio.CancelledError):
                asyncio.run(self._main())
        finally:
            self._has_ended = True
            if not self._started.done():
                self._started.set_exception(self._end_cause)
            for call in list(self._calls):
                call.fail(self._end_cause)

    async def _main(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._looping.set_result((asyncio.get_running_loop(), task))
        try:
            await run_engine(self._config, self._plan, self._started.set_result)
        except Exception as error:  # the outermost boundary of this thread
            self._end_cause = error


class _Call(Generic[T]):
    """One piece of work: begun and cancelled on the loop, waited for in a caller's thread."""

    def __init__(self, work: Work[T]) -> None:
        self.future: Future[T] = Future()
        self._work = work
        self._task: asyncio.Task[T] | None = None

    def begin(self, context: ServingContext) -> None:
        """Start the work. On the loop."""
        self._task = asyncio.get_running_loop().create_task(self._work(context))
        self._task.add_done_callback(self._finish)

    def cancel(self) -> None:
        """Cancel the work, and end the wait once it has cleaned up. On the loop."""
        if self._task is not None:
            self._task.cancel()
            self._task.add_done_callback(lambda _: self.fail(CancelledError()))

    def fail(self, error: Exception) -> None:
        """End the wait with `error`, unless it has ended."""
        with contextlib.suppress(InvalidStateError):
            self.future.set_exception(error)

    def _finish(self, task: "asyncio.Task[T]") -> None:
        # Cancelled without `cancel`, the loop is about to end: the thread then says why.
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self.future.set_result(task.result())
        else:
            self.future.set_exception(error)


def _tells_of_a_dead_engine(error: BaseException) -> bool:
    return isinstance(error, EngineDeadError) or (
        isinstance(error, RequestError) and error.code == "engine_unavailable"
    )

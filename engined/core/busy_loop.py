"""The busy loop of the EngineCore process. It touches queues only, never a socket, and blocks when there is no work."""

import queue
import time
from typing import Protocol

from engined import faults
from engined.core.commands import Command, ExecutorDied, InputQueue, OutputQueue, Send, Shutdown
from engined.core.engine_core import EngineCore
from engined.errors import EngineDeadError
from engined.process.heartbeat import REST_INTERVAL, Phase

_SECONDS_UNTIL_REST = 1.0


class Beat(Protocol):
    """Takes a sign of life."""

    def __call__(self, phase: Phase, at: float | None = None) -> None:
        """`phase` is what the loop does; `at` is as in HeartbeatWriter.beat."""


class BusyLoop:
    """Takes commands, steps while there is work, hands the outputs on."""

    def __init__(self, engine_core: EngineCore, inputs: InputQueue, outputs: OutputQueue, beat: Beat) -> None:
        """`beat` is told what the loop does, each time it does it."""
        self._beat = beat
        self._engine_core = engine_core
        self._inputs = inputs
        self._outputs = outputs
        self._is_stopping = False

    def run(self) -> None:
        """Run until a Shutdown command. An exception means that the engine is unusable."""
        while not self._is_stopping:
            faults.point("thread.loop")
            if not self._engine_core.has_work():
                self._handle(self._wait_for_command())
            self._drain_inputs()
            if self._engine_core.has_work():
                self._beat(Phase.STEP)
                self._send(self._engine_core.step(self._drain_inputs))
            else:
                self._send(self._engine_core.take_pending_outputs())

    def _wait_for_command(self) -> Command:
        """The next command. Once nothing came for a moment, the memory of the last batches is given back.

        The signs of life are those of the whole group: they are as old as that of the rank that was silent longest.
        """
        timeout, has_rested, began = _SECONDS_UNTIL_REST, False, time.monotonic()
        while True:
            self._beat(Phase.IDLE, self._engine_core.last_sign_of_life(began))
            try:
                return self._inputs.get(timeout=timeout)
            except queue.Empty:
                timeout = REST_INTERVAL
            if not has_rested:
                self._engine_core.release_memory()
                has_rested = True

    def _drain_inputs(self) -> None:
        while not self._inputs.empty():
            self._handle(self._inputs.get())

    def _handle(self, command: Command) -> None:
        if isinstance(command, Shutdown):
            self._is_stopping = True
        elif isinstance(command, ExecutorDied):
            raise EngineDeadError(command.cause)
        else:
            self._send(self._engine_core.handle(command))

    def _send(self, messages: list[Send]) -> None:
        for message in messages:
            self._outputs.put(message)

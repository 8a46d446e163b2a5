"""The busy loop of the EngineCore process. It touches queues only, never a socket, and blocks when there is no work."""

import queue

from engined.core.commands import Command, InputQueue, OutputQueue, Send, Shutdown
from engined.core.engine_core import EngineCore

_SECONDS_UNTIL_REST = 1.0


class BusyLoop:
    """Takes commands, steps while there is work, hands the outputs on."""

    def __init__(self, engine_core: EngineCore, inputs: InputQueue, outputs: OutputQueue) -> None:
        self._engine_core = engine_core
        self._inputs = inputs
        self._outputs = outputs
        self._is_stopping = False

    def run(self) -> None:
        """Run until a Shutdown command. An exception means that the engine is unusable."""
        while not self._is_stopping:
            if not self._engine_core.has_work():
                self._handle(self._wait_for_command())
            self._drain_inputs()
            if self._engine_core.has_work():
                self._send(self._engine_core.step(self._drain_inputs))
            else:
                self._send(self._engine_core.take_pending_outputs())

    def _wait_for_command(self) -> Command:
        """The next command. Once nothing came for a moment, the memory of the last batches is given back."""
        try:
            return self._inputs.get(timeout=_SECONDS_UNTIL_REST)
        except queue.Empty:
            self._engine_core.release_memory()
            return self._inputs.get()

    def _drain_inputs(self) -> None:
        while not self._inputs.empty():
            self._handle(self._inputs.get())

    def _handle(self, command: Command) -> None:
        if isinstance(command, Shutdown):
            self._is_stopping = True
        else:
            self._send(self._engine_core.handle(command))

    def _send(self, messages: list[Send]) -> None:
        for message in messages:
            self._outputs.put(message)

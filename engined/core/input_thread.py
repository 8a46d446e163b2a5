"""The input IO thread of an engine core: accepts frontends, decodes their frames, prepares requests, hears signals.

Everything that can be done for a request before it is scheduled happens here (decoding, range checks, block hashes), so
that the busy loop only appends it. A bad frame closes its link; a bad request ends alone.
"""

import logging
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from engined import faults
from engined.core.clients import ClientTable
from engined.core.commands import (
    AbortRequests,
    AddRequest,
    CallUtility,
    ClientGone,
    InputQueue,
    RefuseRequest,
    Shutdown,
)
from engined.core.request_factory import RequestFactory
from engined.errors import ProtocolError, RequestError
from engined.ipc.channel import BlockingChannel
from engined.ipc.frame import Frame, MessageType
from engined.process.signals import SignalInbox
from engined.protocol.codec import decode
from engined.protocol.engine import AbortRequests as AbortMessage
from engined.protocol.engine import EngineCoreRequest, UtilityCall

logger = logging.getLogger(__name__)

_SECONDS_AFTER_FAILED_ACCEPT = 0.1


@dataclass(frozen=True, slots=True)
class InputSources:
    """Where news comes from, apart from the links: new frontends, and SIGTERM."""

    listener: socket.socket
    signals: SignalInbox


class InputThread:
    """Reads from the listening socket, all links and the signals; writes only to the input queue."""

    def __init__(self, sources: InputSources, clients: ClientTable, queue: InputQueue, factory: RequestFactory) -> None:
        self._listener = sources.listener
        self._signals = sources.signals
        self._clients = clients
        self._queue = queue
        self._factory = factory
        self._selector = selectors.DefaultSelector()

    def run(self, on_connect: Callable[[int], None]) -> None:
        """Serve for ever. `on_connect(index)` greets a new client."""
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._signals, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                faults.point("thread.input")
                if key.fileobj is self._listener:
                    self._accept(on_connect)
                elif key.fileobj is self._signals:
                    self._stop()
                else:
                    self._read(key.data[0], key.data[1])

    def _accept(self, on_connect: Callable[[int], None]) -> None:
        try:
            faults.point("accept")
            connection, _ = self._listener.accept()
        except OSError as error:
            # Out of descriptors, or the frontend has gone again. It still waits, so we would be back here at once.
            logger.error("cannot accept a frontend: %s", error)
            time.sleep(_SECONDS_AFTER_FAILED_ACCEPT)
            return
        channel = BlockingChannel(connection)
        index = self._clients.add(channel)
        self._selector.register(channel, selectors.EVENT_READ, (index, channel))
        logger.debug("frontend link %d is open", index)
        on_connect(index)

    def _stop(self) -> None:
        if self._signals.take():
            self._queue.put(Shutdown())

    def _read(self, index: int, channel: BlockingChannel) -> None:
        try:
            frames = channel.receive_available()
            for frame in frames or ():
                self._handle(index, frame)
        except (ProtocolError, OSError) as error:
            logger.error("frontend link %d: %s", index, error)
            frames = None
        if frames is None:
            self._close(index, channel)

    def _close(self, index: int, channel: BlockingChannel) -> None:
        self._selector.unregister(channel)
        self._clients.remove(index)
        channel.close()
        self._queue.put(ClientGone(index))
        logger.debug("frontend link %d is closed", index)

    def _handle(self, index: int, frame: Frame) -> None:
        match frame.type:
            case MessageType.ADD:
                message = decode(frame.payload, EngineCoreRequest)
                try:
                    self._queue.put(AddRequest(self._factory.make(message, index)))
                except RequestError as error:
                    self._queue.put(RefuseRequest(index, message.request_id, str(error)))
                except Exception as error:  # the boundary of this request: its neighbours use the same thread
                    logger.exception("request %s cannot be taken in", message.request_id)
                    self._queue.put(RefuseRequest(index, message.request_id, f"internal error: {error}"))
            case MessageType.ABORT:
                self._queue.put(AbortRequests(index, decode(frame.payload, AbortMessage).request_ids))
            case MessageType.UTILITY:
                self._queue.put(CallUtility(index, decode(frame.payload, UtilityCall)))
            case _:
                raise ProtocolError(f"a frontend may not send {frame.type.name}")

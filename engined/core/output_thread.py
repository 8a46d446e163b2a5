"""The output IO thread of an engine core: encodes what the busy loop produced and writes it to the frontends."""

import logging

from engined import faults
from engined.core.clients import ClientTable
from engined.core.commands import OutputQueue
from engined.ipc.channel import BlockingChannel
from engined.ipc.frame import MessageType
from engined.protocol.codec import encode
from engined.protocol.engine import EngineCoreOutputs, EngineFatal, EngineReady, UtilityResult
from engined.trace.tracer import NO_TRACK, Track

logger = logging.getLogger(__name__)

_TYPES = {
    EngineReady: MessageType.READY,
    EngineCoreOutputs: MessageType.OUTPUTS,
    EngineFatal: MessageType.FATAL,
    UtilityResult: MessageType.UTILITY,
}


def run_output_thread(queue: OutputQueue, clients: ClientTable, track: Track = NO_TRACK) -> None:
    """Send until None is taken from the queue. A link that breaks is left to the input thread, which sees its end."""
    while (item := queue.get()) is not None:
        faults.point("thread.output")
        channels = clients.get(item.client_index)
        if not channels:
            continue
        with track.span("send"):
            payload = encode(item.message)
            for channel in channels:
                _send(channel, _TYPES[type(item.message)], payload)


def _send(channel: BlockingChannel, type: MessageType, payload: bytes) -> None:
    try:
        channel.send(type, payload)
    except OSError as error:
        logger.info("a frontend link broke while sending: %s", error)

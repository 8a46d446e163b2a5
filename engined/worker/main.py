"""Entry of a worker process: one rank of a group, driven by the core over its link. Started by MultiProcExecutor.

The core reads its signs of life, and gives none itself while a rank at rest gives none.
"""

import gc
import socket

import msgspec

from engined.errors import ProtocolError
from engined.ipc.channel import BlockingChannel
from engined.ipc.frame import Frame, MessageType
from engined.process.child import Child
from engined.process.heartbeat import REST_INTERVAL, Phase
from engined.protocol.boot import WorkerBoot
from engined.protocol.codec import decode, encode
from engined.protocol.plan import GrammarMasks, ModelRunnerOutput, SchedulerOutput
from engined.worker.worker import Worker


def main(child: Child) -> int:
    """Execute plans until the core closes the link. Any failure ends the process, and with it the group."""
    boot = msgspec.convert(child.data, WorkerBoot)
    channel = BlockingChannel(socket.socket(fileno=child.fds["link"]))
    worker = Worker(boot.settings, boot.rank, child.report_progress, boot.rendezvous)
    worker.initialize()
    gc.collect()
    gc.freeze()
    child.report_ready()
    while (frame := _next_frame(channel, child)) is not None:
        child.heartbeat.beat(Phase.STEP)
        result: ModelRunnerOutput | None = None
        match frame.type:
            case MessageType.EXECUTE:
                result = worker.execute_model(decode(frame.payload, SchedulerOutput))
            case MessageType.SAMPLE:
                result = worker.sample_tokens(_masks(frame))
            case MessageType.RELEASE:
                worker.release_memory()
            case _:
                raise ProtocolError(f"a core may not send {frame.type.name} to a worker")
        if result is not None and boot.rank == 0:
            channel.send(MessageType.RESULT, encode(result))
    return 0


def _next_frame(channel: BlockingChannel, child: Child) -> Frame | None:
    """What the core wants next; None when it has closed the link."""
    child.heartbeat.beat(Phase.IDLE)
    while not channel.wait(REST_INTERVAL):
        child.heartbeat.beat(Phase.IDLE)
    return channel.receive()


def _masks(frame: Frame) -> GrammarMasks | None:
    """The grammar masks of a SAMPLE frame, which rank 0 gets, if there are any."""
    if not frame.blobs:
        return None
    return GrammarMasks(request_ids=decode(frame.payload, list[str]), rows=frame.blobs[0])

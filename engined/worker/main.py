"""Entry of a worker process: one rank of a group, driven by the core over its link. Started by MultiProcExecutor.

The core reads its signs of life, and gives none itself while a rank at rest gives none.
"""

import gc
import os
import signal
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
from engined.trace.tracer import Tracer
from engined.worker.worker import Worker


def main(child: Child) -> int:
    """Execute plans until the core closes the link. Any failure ends the process, and with it the group."""
    boot = msgspec.convert(child.data, WorkerBoot)
    channel = BlockingChannel(socket.socket(fileno=child.fds["link"]))
    tracer = Tracer(boot.settings.config.server.trace, child.name)
    if boot.settings.config.server.trace is not None:
        signal.signal(signal.SIGTERM, lambda *_: _end_traced(tracer))
    worker = Worker(boot.settings, boot.rank, child.report_progress, boot.rendezvous, tracer.track("worker"))
    try:
        worker.initialize()
        gc.collect()
        gc.freeze()
        child.report_ready()
        _serve(channel, worker, child, boot.rank)
    finally:
        tracer.close()
    return 0


def _end_traced(tracer: Tracer) -> None:
    """End as by SIGTERM, with which the core ends its ranks, but write the last spans first."""
    tracer.close()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def _serve(channel: BlockingChannel, worker: Worker, child: Child, rank: int) -> None:
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
        if result is not None and rank == 0:
            channel.send(MessageType.RESULT, encode(result))


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

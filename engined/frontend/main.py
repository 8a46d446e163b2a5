"""The role of a frontend process: `engined.process.child` imports this module and calls `main`."""

import asyncio
import socket

import msgspec

from engined.frontend.app import build_frontend
from engined.frontend.server import run_frontend
from engined.process.board import BoardReader
from engined.process.child import Child
from engined.protocol.boot import FrontendBoot
from engined.trace.tracer import Tracer


def main(child: Child) -> int:
    """Build the frontend from the boot data and serve the sockets that came with it, until told to stop.

    Raises EnginedError if the model's files or the options do not allow it.
    """
    boot = msgspec.convert(child.data, FrontendBoot)
    board = BoardReader(child.fds["board"])
    child.report_progress("loading the tokenizer")
    tracer = Tracer(boot.config.server.trace, child.name)
    frontend = build_frontend(boot.config, boot.model_info, boot.engine_socket, board.read, tracer)
    child.report_progress("waiting for the first token of the engine")
    sockets = [socket.socket(fileno=child.fds[name]) for name in ("http", "uds") if name in child.fds]
    timeout = boot.config.server.shutdown_timeout
    try:
        asyncio.run(run_frontend(frontend, sockets, timeout, child.report_ready, child.heartbeat.beat))
    finally:
        tracer.close()
    return 0

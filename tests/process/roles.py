"""Roles of real child processes for the tests of engined.process."""

import os
import signal
import sys
import time

from engined.errors import CheckpointError
from engined.process.child import Child


def main(child: Child) -> int:
    """Do what `data["role"]` says."""
    match child.data["role"]:
        case "report":
            child.report_progress("half way")
            child.report_ready(pid=os.getpid(), data=child.data, argv=sys.argv[1:])
            time.sleep(60)
        case "fail":
            raise CheckpointError("model.safetensors: cut off")
        case "bug":
            raise KeyError("oops")
        case "exit":
            return int(child.data["code"])
        case "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            child.report_ready()
            time.sleep(60)
        case "write":
            os.write(child.fds["out"], b"hello from the child")
    return 0

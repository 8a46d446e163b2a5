"""A parent that starts a child, tells its pid, and waits: to be killed by the test."""

import sys
import threading
import time

from engined.process.launch import ChildProcess, ChildSpec

child = ChildProcess.start(ChildSpec(name="orphan", entry=sys.argv[1], data={"role": "report"}))
while not any(report.kind == "ready" for report in child.read_status()):
    time.sleep(0.01)
print(child.pid, flush=True)
threading.Event().wait()

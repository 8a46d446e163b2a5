"""Threads that compute stay on the cores that they are given."""

import os
import subprocess
import sys

from engined.kernels.cpu.library import CpuKernels

# In a process of its own, whose threads are known, and would stay bound.
BIND = """
import os, sys, threading
from pathlib import Path
from engined.kernels.cpu.library import CpuKernels

cpus = sorted(os.sched_getaffinity(0))
kernels, before = CpuKernels(Path(sys.argv[1])), os.listdir("/proc/self/task")

def bind():
    kernels.bind_threads(cpus)
    helpers = set(os.listdir("/proc/self/task")) - {*before, str(threading.get_native_id())}
    assert os.sched_getaffinity(0) == {cpus[0]}
    assert sorted(min(os.sched_getaffinity(int(task))) for task in helpers) == cpus[1:]
    assert all(len(os.sched_getaffinity(int(task))) == 1 for task in helpers)
    print("bound")

thread = threading.Thread(target=bind)
thread.start()
thread.join()
assert os.sched_getaffinity(0) == set(cpus), "the other threads stay where they were"
"""


def test_threads_get_a_core_each(kernels: CpuKernels) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))}
    command = [sys.executable, "-c", BIND, str(kernels.path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "bound\n"), done.stderr

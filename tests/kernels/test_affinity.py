"""Threads that compute stay on the cores that they are given."""

import os
import threading

import torch

from engined.kernels.cpu.library import CpuKernels


def test_threads_get_a_core_each(kernels: CpuKernels) -> None:
    cpus = sorted(os.sched_getaffinity(0))[: torch.get_num_threads()]
    before = os.listdir("/proc/self/task")
    affinities: list[set[int]] = []

    def bind() -> None:
        kernels.bind_threads(cpus)
        mine = str(threading.get_native_id())
        others = [task for task in os.listdir("/proc/self/task") if task not in (mine, *before)]
        affinities.extend(os.sched_getaffinity(int(task)) for task in (mine, *others))

    # A thread of its own: it and its helpers would stay bound.
    thread = threading.Thread(target=bind)
    thread.start()
    thread.join()
    assert affinities[0] == {cpus[0]}
    assert sorted(affinities, key=min) == [{cpu} for cpu in cpus]
    assert os.sched_getaffinity(0) >= set(cpus), "the other threads stay where they were"

"""AMX where the kernel refuses it: the kernels are built without, and compute."""

import subprocess
import sys
from pathlib import Path

import pytest

from engined.kernels.cpu.build import find_compiler
from engined.kernels.cpu.tiles import NATIVE, WITHOUT_TILES, has_tiles, machine_flags, request_tiles

# A seccomp filter of six instructions: arch_prctl(ARCH_REQ_XCOMP_PERM) fails with EPERM, all else passes.
REFUSED = """
import ctypes, struct, sys
from pathlib import Path

LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
NUMBER, FIRST_ARGUMENT = 0, 16
filters = [
    (LOAD, 0, 0, NUMBER),
    (JUMP_IF_EQUAL, 0, 3, 158),
    (LOAD, 0, 0, FIRST_ARGUMENT),
    (JUMP_IF_EQUAL, 0, 1, 0x1023),
    (RETURN, 0, 0, 0x00050000 | 1),
    (RETURN, 0, 0, 0x7FFF0000),
]
code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *line) for line in filters))
program = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(filters), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0, "PR_SET_NO_NEW_PRIVS"
if libc.prctl(22, 2, program) != 0:
    sys.exit(77)

import torch
from engined.kernels.cpu.library import load_cpu_kernels
from engined.kernels.cpu.memory import WeightMemory
from engined.kernels.cpu.tiles import machine_flags

print(*machine_flags())
kernels = load_cpu_kernels(Path(sys.argv[1]))
weight = torch.eye(64, dtype=torch.bfloat16)
inputs = torch.arange(48 * 64).reshape(48, 64).remainder(200).bfloat16()
print(torch.equal(kernels.linear(inputs, kernels.pack_linear(weight, WeightMemory()), None), inputs))
"""


def test_a_machine_without_tiles_is_not_asked_for_them() -> None:
    if has_tiles():
        pytest.skip("this CPU has tiles")
    assert not request_tiles()
    assert machine_flags() == NATIVE


def test_the_kernel_refuses_tiles(tmp_path: Path) -> None:
    if not has_tiles() or find_compiler() is None:
        pytest.skip("needs a CPU with tiles, and a compiler")
    command = [sys.executable, "-c", REFUSED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode == 77:
        pytest.skip("no seccomp filters here")
    assert done.stdout.split("\n")[:2] == [" ".join(WITHOUT_TILES), "True"], done.stderr

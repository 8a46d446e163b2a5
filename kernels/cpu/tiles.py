"""Permission to use the tile registers of Intel's AMX, which Linux grants to a process that asks. Rank processes.

Whoever uses tiles without it is killed by SIGILL. The permission covers all threads, and ends with the process.
"""

import ctypes

from engined.config.resources import cpu_flags

NATIVE = ("-march=native",)
WITHOUT_TILES = (*NATIVE, "-mno-amx-tile", "-mno-amx-bf16", "-mno-amx-int8")

_ARCH_PRCTL = 158
"""The system call, of x86-64."""
_ARCH_REQ_XCOMP_PERM = 0x1023
_XFEATURE_XTILEDATA = 18


def has_tiles() -> bool:
    """Whether this CPU has tile registers, allowed or not."""
    return "amx_tile" in cpu_flags()


def request_tiles() -> bool:
    """Ask for tiles; False where the CPU has none, or the kernel (before 5.16) or a seccomp filter refuses them."""
    if not has_tiles():
        return False
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA) == 0)


def machine_flags() -> tuple[str, ...]:
    """What the compiler is told of this machine. Asks for tiles: code that uses them may run once this returned."""
    return WITHOUT_TILES if has_tiles() and not request_tiles() else NATIVE

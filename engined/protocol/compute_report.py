"""What a rank would compute with: from the process that tried it (`engined.worker.probe`) to `engined doctor`."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeReport:
    """What the libraries and this machine allow."""

    torch: str
    compiler: str | None
    """Path of g++."""
    kernels: str | None
    """Path of the built library; None if there is none."""
    problem: str | None
    """Why there is none, or what is wrong with its results."""
    tiles: Literal["none", "granted", "refused"]
    """Registers of Intel's AMX: whether the CPU has them, and the system lets us use them."""
    linears: dict[str, str]
    """By type of weights, what multiplies by them."""
    attention: dict[str, str]

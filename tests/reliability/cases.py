"""The kill matrix as data: who is harmed, when, and how; and the part of it that CI runs."""

from dataclasses import dataclass
from itertools import product

ROLES = (
    "supervisor",
    "frontend",
    "engine",
    "rank 1",
)
STARTING = ("spawn", "handshake", "load", "warm-up")
SERVING = ("idle", "prefill", "decode", "streaming", "drain")
PHASES = STARTING + SERVING
ACTIONS = ("SIGKILL", "SIGSTOP", "exit")
RANKS_OF = {"rank 1": ("--tp", "2")}
"""Flags that a role needs to be there."""


@dataclass(frozen=True, slots=True)
class Case:
    """One process that is harmed once."""

    role: str
    phase: str
    action: str

    def __str__(self) -> str:
        return f"{self.role}-{self.phase}-{self.action}".replace(" ", "")


MATRIX = [Case(*case) for case in product(ROLES, PHASES, ACTIONS)]

# Every role in every phase once. Those that the daemon survives come first, for it then serves the next case too; one
# that it does not survive uses it up. Stops during the start take as long as the limit that finds them, so the only one
# of them here is that of the supervisor.
CI = [
    Case("supervisor", "warm-up", "SIGSTOP"),
    Case("frontend", "idle", "SIGKILL"),
    Case("frontend", "prefill", "exit"),
    Case("supervisor", "idle", "SIGKILL"),
    Case("engine", "prefill", "SIGKILL"),
    Case("engine", "decode", "SIGSTOP"),
    Case("frontend", "decode", "SIGKILL"),
    Case("frontend", "streaming", "SIGSTOP"),
    Case("supervisor", "prefill", "SIGKILL"),
    Case("engine", "streaming", "SIGKILL"),
    Case("engine", "idle", "exit"),
    Case("supervisor", "decode", "exit"),
    Case("supervisor", "streaming", "SIGSTOP"),
    Case("supervisor", "drain", "SIGKILL"),
    Case("frontend", "drain", "SIGKILL"),
    Case("engine", "drain", "exit"),
    Case("supervisor", "spawn", "SIGKILL"),
    Case("supervisor", "handshake", "exit"),
    Case("supervisor", "load", "SIGKILL"),
    Case("frontend", "spawn", "SIGKILL"),
    Case("frontend", "handshake", "SIGKILL"),
    Case("frontend", "load", "exit"),
    Case("frontend", "warm-up", "SIGKILL"),
    Case("engine", "spawn", "exit"),
    Case("engine", "handshake", "SIGKILL"),
    Case("engine", "load", "SIGKILL"),
    Case("engine", "warm-up", "exit"),
]

"""Which process the kernel kills when memory runs out. Called first thing in every child."""

import contextlib
from pathlib import Path

_SCORE = Path("/proc/self/oom_score_adj")
_CHILD_SCORE = 300


def give_up_protection() -> None:
    """Become a likelier victim than the supervisor, if the service manager protects that one.

    It is the child that holds the memory, and only the supervisor can start a dead child again. A child that inherits
    no protection, as on a desktop, stays as likely as any other program. Raising the score needs no privilege.
    """
    with contextlib.suppress(OSError, ValueError):
        if int(_SCORE.read_text()) < 0:
            _SCORE.write_text(str(_CHILD_SCORE))

"""Why a child ended badly, and what that means for the daemon. Pure; used by the supervisor."""

from collections.abc import Sequence
from dataclasses import dataclass

from engined.process.launch import ChildProcess, describe_exit


@dataclass(frozen=True, slots=True)
class Failure:
    """A child that ended unasked or badly."""

    name: str
    """Of the service."""
    cause: str
    """A sentence without its full stop."""
    exit_code: int
    """Of the daemon, should this end it."""


def describe_death(child: ChildProcess, code: int) -> Failure:
    """The failure of a child that ended with `code`, in its own words if it said any."""
    if child.failure is not None:
        exit_code = child.failure.exit_code or 70
        return Failure(child.name, f"{describe_exit(child.name, code)}: {child.failure.text}", exit_code)
    cause = f"{describe_exit(child.name, code)} and said no cause"
    return Failure(child.name, cause, 128 - code if code < 0 else code or 70)


def root_cause(failures: Sequence[Failure], names: Sequence[str]) -> Failure:
    """The one that explains the others: `names` of services stand in the order in which they need each other, so that
    a core comes before the frontends that fail for want of it."""
    return min(failures, key=lambda failure: names.index(failure.name))

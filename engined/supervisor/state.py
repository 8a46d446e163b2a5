"""From the states of the services to the one state of the daemon that is announced. Pure; called by the supervisor."""

import time
from collections.abc import Sequence

from engined.process.board import DaemonState, shorten
from engined.supervisor.service import Service

_RETRY_MARGIN = 5.0
"""Seconds beyond the restart of an engine, in which it loads, that clients are told to wait."""


def describe_state(services: Sequence[Service], *, was_ready: bool, is_stopping: bool, last_cause: str) -> DaemonState:
    """`services` in the order in which they are ended: each waits for those behind it. `last_cause` is what went wrong
    last, and of a daemon that stops, why it must; empty if nothing did."""
    num_restarts = sum(service.num_restarts for service in services)
    if is_stopping:
        text = shorten("the server is shutting down" + (f": {last_cause}" if last_cause else ""))
        return DaemonState(phase="stopping", text=text, was_ready=was_ready, num_restarts=num_restarts)
    unready = [service for service in services if service.facts is None]
    if not unready and was_ready:
        return DaemonState(phase="serving", was_ready=True, num_restarts=num_restarts)
    waits = [service.restart_time - time.monotonic() for service in unready if service.restart_time is not None]
    doing = "ready" if not unready else f"{unready[-1].name}: {unready[-1].progress or 'starting'}"
    return DaemonState(
        phase="recovering" if was_ready else "starting",
        text=shorten(f"{doing} (after this: {last_cause})" if was_ready else doing),
        retry_after=_RETRY_MARGIN + max(waits, default=0.0),
        was_ready=was_ready,
        num_restarts=num_restarts,
    )

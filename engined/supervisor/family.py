"""The running children of all services, and the one place where news of them and of signals arrives. Main process."""

import logging
import selectors
from collections.abc import Collection, Sequence

from engined.process.launch import ChildProcess
from engined.process.signals import SignalInbox
from engined.supervisor.service import Service, ServiceSpec

logger = logging.getLogger(__name__)


class Family:
    """Owns the child processes, and the selector over their pidfds, their status pipes and the signals."""

    def __init__(self, signals: SignalInbox) -> None:
        self._selector = selectors.DefaultSelector()
        self._selector.register(signals, selectors.EVENT_READ)
        self.groups: list[list[Service]] = []

    @property
    def services(self) -> list[Service]:
        """All, in the order in which they are ended."""
        return [service for group in self.groups for service in group]

    @property
    def children(self) -> list[ChildProcess]:
        """Those that run."""
        return [service.child for service in self.services if service.child is not None]

    @property
    def pids(self) -> Collection[int]:
        """Of those that run."""
        return {child.pid for child in self.children}

    def start_all(self, groups: Sequence[Sequence[ServiceSpec]]) -> None:
        """Start every service, engines first: they take longest. Raises OSError if a process cannot be started."""
        self.groups = [[Service(spec) for spec in specs] for specs in groups]
        for service in reversed(self.services):
            self.start(service)

    def start(self, service: Service) -> None:
        """Start the child of one service. Raises OSError."""
        child = ChildProcess.start(service.spec.make())
        service.child, service.restart_time = child, None
        self._selector.register(child.pidfd, selectors.EVENT_READ, service)
        self._selector.register(child.status.fd, selectors.EVENT_READ, service)
        logger.debug("started %s, pid %d", child.name, child.pid)

    def wait(self, seconds: float) -> list[Service]:
        """Wait for news, or for a signal; the services whose child has written something, or has ended."""
        events = self._selector.select(max(seconds, 0.0))
        return list({key.data.name: key.data for key, _ in events if key.data is not None}.values())

    def forget(self, service: Service) -> None:
        """Let go of a child that has been reaped."""
        child = service.child
        assert child is not None
        self._selector.unregister(child.pidfd)
        self._selector.unregister(child.status.fd)
        child.close()
        service.note_end()

    def kill(self, service: Service) -> None:
        """SIGKILL, now."""
        if service.child is not None:
            service.child.stop(timeout=0.0)
            self.forget(service)

    def close(self) -> None:
        """Kill what runs."""
        for service in self.services:
            self.kill(service)
        self._selector.close()

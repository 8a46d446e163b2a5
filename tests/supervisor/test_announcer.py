"""What a service manager hears, from states alone; and what is taken from its environment, and what is not."""

import contextlib
import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from engined.errors import ListenError
from engined.process.board import Board, BoardReader, DaemonState
from engined.supervisor import announcer
from engined.supervisor.announcer import Announcer
from engined.supervisor.sdnotify import ServiceManager, inherited_sockets

SERVING = DaemonState(phase="serving", was_ready=True)


class Ear:
    """Hears notifications on `address`, and moves the announcer's clock."""

    def __init__(self, address: str) -> None:
        self.now = 0.0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address.replace("@", "\0", 1))
        self._socket.setblocking(False)

    def monotonic(self) -> float:
        return self.now

    def monotonic_ns(self) -> int:
        return round(self.now * 1e9)

    def heard(self) -> list[str]:
        """The messages since the last call."""
        messages = []
        with contextlib.suppress(BlockingIOError):
            while True:
                messages.append(self._socket.recv(65536).decode())
        return messages

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "notify") if request.param == "path" else f"@engined-test-{uuid.uuid4()}"


@pytest.fixture
def ear(address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ear]:
    with contextlib.closing(Ear(address)) as ear:
        monkeypatch.setattr(announcer, "time", ear)
        yield ear


@pytest.fixture
def board() -> Iterator[Board]:
    with contextlib.closing(Board()) as board:
        yield board


def test_the_life_of_a_daemon(ear: Ear, board: Board, address: str) -> None:
    announce = Announcer(board, ServiceManager({"NOTIFY_SOCKET": address})).announce
    loading = DaemonState(phase="starting", text="EngineCore 0: weights,\n40 %")
    announce(loading)
    assert ear.heard() == ["STATUS=starting: EngineCore 0: weights, 40 %", "EXTEND_TIMEOUT_USEC=60000000"]
    for ear.now in (1.0, 5.0, 9.9):
        announce(loading)
    assert ear.heard() == []
    ear.now = 10.0
    announce(loading)
    assert ear.heard() == ["EXTEND_TIMEOUT_USEC=60000000"]

    for ear.now in (30.0, 31.0):
        announce(SERVING)
    assert ear.heard() == ["READY=1\nSTATUS=serving"]
    announce(DaemonState(phase="recovering", text="frontend 0: starting", was_ready=True))
    announce(DaemonState(phase="serving", was_ready=True, num_restarts=2))
    assert ear.heard() == ["STATUS=recovering: frontend 0: starting", "STATUS=serving, after 2 restarts"]

    for ear.now in (40.0, 45.0, 51.0):
        announce(DaemonState(phase="stopping", text="EngineCore 0 crashes again and again", was_ready=True))
    assert ear.heard() == [
        "STOPPING=1\nSTATUS=stopping: EngineCore 0 crashes again and again",
        "EXTEND_TIMEOUT_USEC=60000000",
        "EXTEND_TIMEOUT_USEC=60000000",
    ]
    assert BoardReader(board.fd).read().phase == "stopping"


def test_reload(ear: Ear, board: Board, address: str) -> None:
    announce = Announcer(board, ServiceManager({"NOTIFY_SOCKET": address})).announce
    announce(DaemonState(phase="starting", num_reloads=1))
    assert not any("RELOADING" in message or "READY" in message for message in ear.heard())
    announce(DaemonState(phase="serving", num_reloads=1))
    ear.heard()
    ear.now = 12.5
    announce(DaemonState(phase="serving", num_reloads=2))
    assert ear.heard() == ["RELOADING=1\nMONOTONIC_USEC=12500000", "READY=1"]


@pytest.mark.parametrize("interval", [3.0, 30.0])
def test_watchdog_is_fed_within_a_third_of_its_interval(ear: Ear, board: Board, address: str, interval: float) -> None:
    environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": f"{interval * 1e6:.0f}", "WATCHDOG_PID": str(os.getpid())}
    announce = Announcer(board, ServiceManager(environment)).announce
    times = []
    for second in range(100):
        ear.now = float(second)
        announce(SERVING)
        if "WATCHDOG=1" in ear.heard():
            times.append(second)
    gaps = [later - sooner for sooner, later in zip(times, times[1:], strict=False)]
    assert times[0] == 0 and interval / 3 - 1 <= min(gaps) and max(gaps) <= interval / 3


def test_watchdog_of_another_process_is_not_ours(address: str) -> None:
    environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "3000000"}
    assert ServiceManager(environment).watchdog_interval == 3.0
    assert ServiceManager(environment | {"WATCHDOG_PID": "1"}).watchdog_interval is None
    assert ServiceManager({"WATCHDOG_USEC": "3000000"}).watchdog_interval is None


@pytest.mark.parametrize("address", ["", "vsock:2:1234", "relative/path", "/no/such/folder/notify"])
def test_nobody_listens(board: Board, address: str) -> None:
    Announcer(board, ServiceManager({"NOTIFY_SOCKET": address})).announce(SERVING)
    assert BoardReader(board.fd).read().phase == "serving"


def test_a_manager_that_does_not_read_stops_nobody(ear: Ear, address: str) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": address})
    for _ in range(2000):
        manager.notify(STATUS="x" * 1000)
    assert 0 < len(ear.heard()) < 2000


def test_no_sockets_without_the_variables_or_for_another_process() -> None:
    assert inherited_sockets({}) == []
    assert inherited_sockets({"LISTEN_FDS": "1", "LISTEN_PID": "1"}) == []


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_what_does_not_listen_is_refused(monkeypatch: pytest.MonkeyPatch, kind: socket.SocketKind) -> None:
    with socket.socket(socket.AF_INET, kind) as given:
        monkeypatch.setattr("engined.supervisor.sdnotify._FIRST_FD", os.dup(given.fileno()))
        with pytest.raises(ListenError, match="Accept=no"):
            inherited_sockets({"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())})


def test_what_is_no_socket_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        monkeypatch.setattr("engined.supervisor.sdnotify._FIRST_FD", file.fileno())
        with pytest.raises(ListenError, match="which is no socket"):
            inherited_sockets({"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())})


def test_sockets_are_closed_on_exec_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as given:
        fd = os.dup(given.fileno())
        os.set_inheritable(fd, True)
        monkeypatch.setattr("engined.supervisor.sdnotify._FIRST_FD", fd)
        environment = {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid()), "LISTEN_FDNAMES": "http"}
        [(name, taken)] = inherited_sockets(environment)
        with taken:
            assert name == "http" and not os.get_inheritable(fd)
            assert taken.getsockname() == given.getsockname()

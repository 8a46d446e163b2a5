"""Public sockets: who may take a port or a path, what is replaced, what is left alone."""

import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from engined.config.schema import ServerConfig
from engined.errors import ListenError
from engined.supervisor.listeners import Listeners, listen_tcp, listen_unix


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    yield runtime


def _leave_stale_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))


def test_taken_port_is_named() -> None:
    with listen_tcp("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(ListenError, match=f"127.0.0.1:{port}.*choose another --port"):
            listen_tcp("127.0.0.1", port)


def test_unknown_host_is_named() -> None:
    with pytest.raises(ListenError, match="--host no.such.host.invalid"):
        listen_tcp("no.such.host.invalid", 0)


def test_unix_socket_is_private_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    listener = listen_unix(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    listener.close()
    assert not path.exists()


def test_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    _leave_stale_socket(path)
    listener = listen_unix(path)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    listener.close()


def test_live_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    listener = listen_unix(path)
    inode = path.stat().st_ino
    with pytest.raises(ListenError, match="already listens") as caught:
        listen_unix(path)
    assert caught.value.exit_code == 75
    assert path.stat().st_ino == inode
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    listener.close()


def test_socket_of_a_successor_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    listener = listen_unix(path)
    # The first file keeps its inode number busy, so that the successor gets another one.
    path.rename(tmp_path / "old")
    _leave_stale_socket(path)
    listener.close()
    assert path.exists()


@pytest.mark.parametrize("kind", ["file", "symlink", "folder"])
def test_anything_but_a_socket_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "s.sock"
    if kind == "file":
        path.write_text("precious")
    elif kind == "folder":
        path.mkdir()
    else:
        target = tmp_path / "target.sock"
        _leave_stale_socket(target)
        path.symlink_to(target)
    with pytest.raises(ListenError, match="is not a socket of this user"):
        listen_unix(path)
    assert path.exists() or path.is_symlink()


def test_long_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ListenError, match="the kernel takes 107"):
        listen_unix(tmp_path / ("x" * 120))


def test_default_addresses(runtime: Path) -> None:
    with Listeners(ServerConfig(port=0)) as listeners:
        assert listeners.tcp is not None
        port = listeners.tcp.getsockname()[1]
        assert listeners.addresses == [f"http://127.0.0.1:{port}", f"unix:{runtime}/engined/engined.sock"]
        assert set(listeners.fds) == {"http", "uds"}
    assert not (runtime / "engined" / "engined.sock").exists()


def test_the_tcp_port_can_be_switched_off(tmp_path: Path) -> None:
    with Listeners(ServerConfig(host="none", uds=str(tmp_path / "a.sock"))) as listeners:
        assert list(listeners.fds) == ["uds"] and listeners.addresses == [f"unix:{tmp_path}/a.sock"]
    assert not (tmp_path / "a.sock").exists()


def test_unix_socket_can_be_switched_off() -> None:
    with Listeners(ServerConfig(port=0, uds="none")) as listeners:
        assert list(listeners.fds) == ["http"]


def test_port_is_released_when_the_socket_path_is_refused(tmp_path: Path) -> None:
    with listen_tcp("127.0.0.1", 0) as probe:
        port = probe.getsockname()[1]
    (tmp_path / "file").write_text("")
    with pytest.raises(ListenError):
        Listeners(ServerConfig(port=port, uds=str(tmp_path / "file")))
    listen_tcp("127.0.0.1", port).close()

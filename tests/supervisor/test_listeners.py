"""Public sockets: who may take a port or a path, what is replaced, what is left alone."""

import grp
import logging
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from engined.config.checks import check_config
from engined.config.schema import Config, ServerConfig
from engined.errors import ConfigError, ListenError
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


def _other_group() -> int | None:
    """A group that this user may give a file to, and that files do not have anyway."""
    if os.getuid() == 0:
        return next(group.gr_gid for group in grp.getgrall() if group.gr_gid != os.getgid())
    return next((group for group in os.getgroups() if group != os.getgid()), None)


def test_a_group_may_be_let_in(tmp_path: Path) -> None:
    group = _other_group()
    if group is None:
        pytest.skip("this user is in one group only")
    path = tmp_path / "s.sock"
    listener = listen_unix(path, str(group))
    status = path.stat()
    assert (stat.S_IMODE(status.st_mode), status.st_gid) == (0o660, group)
    listener.close()


def test_unknown_group_is_named(tmp_path: Path) -> None:
    with pytest.raises(ListenError, match="--uds-group no-such-group: there is no such group"):
        listen_unix(tmp_path / "s.sock", "no-such-group")
    assert not (tmp_path / "s.sock").exists()


@pytest.mark.skipif(os.getuid() == 0, reason="root may give files to every group")
def test_group_of_others_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ListenError, match="is this user a member"):
        listen_unix(tmp_path / "s.sock", "root")
    assert not (tmp_path / "s.sock").exists()


def test_sockets_that_were_handed_over_win_and_stay(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tcp, unix = socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX)
    unix.bind(str(tmp_path / "given.sock"))
    unix.listen()
    copies = tcp.dup(), unix.dup()
    config = ServerConfig(host="no.such.host.invalid", uds=str(tmp_path / "own.sock"))
    with (
        caplog.at_level(logging.INFO, "engined"),
        Listeners(config, [("", copies[1]), ("http", copies[0])]) as listeners,
    ):
        port = tcp.getsockname()[1]
        assert listeners.addresses == [f"http://127.0.0.1:{port}", f"unix:{tmp_path}/given.sock"]
    assert "--host and --port do not count" in caplog.text and "--uds and --uds-group do not count" in caplog.text
    for address, family in ((tcp.getsockname(), socket.AF_INET), (unix.getsockname(), socket.AF_UNIX)):
        with socket.socket(family) as client:
            client.connect(address)
    assert not (tmp_path / "own.sock").exists()
    tcp.close()
    unix.close()


def test_the_other_kind_is_our_own(tmp_path: Path) -> None:
    given = socket.create_server(("127.0.0.1", 0))
    with Listeners(ServerConfig(uds=str(tmp_path / "own.sock")), [("engined-http.socket", given)]) as listeners:
        assert listeners.tcp is given and listeners.unix is not None
        assert listeners.unix.path == tmp_path / "own.sock"
    assert not (tmp_path / "own.sock").exists()


def test_sockets_that_do_not_fit_are_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        with pytest.raises(ListenError, match="'uds' that was handed over is of family AF_INET"):
            Listeners(ServerConfig(port=0), [("uds", first)])
        with pytest.raises(ListenError, match="two sockets for http"):
            Listeners(ServerConfig(port=0), [("http", first), ("", second)])


@pytest.mark.parametrize("uds", [None, "none"])
def test_a_group_cannot_enter_the_default_folder(uds: str | None) -> None:
    with pytest.raises(ConfigError, match="--uds-group needs --uds PATH"):
        check_config(Config(server=ServerConfig(uds=uds, uds_group="users")))

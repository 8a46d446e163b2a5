"""Who may talk through the Unix socket: judged by the kernel's word about the process that connected."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engined.frontend.peer import PeerRule, peer_rule
from tests.frontend.conftest import StartFrontend

NOBODY = 65534
GROUP = 54321
ASK_AS = """
import os, socket, sys
path, user, groups = sys.argv[1], int(sys.argv[2]), [int(group) for group in sys.argv[3:]]
os.setgroups(groups)
os.setresgid(user, user, user)
os.setresuid(user, user, user)
with socket.socket(socket.AF_UNIX) as client:
    client.connect(path)
    try:
        client.sendall(b"GET /livez HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n")
        print(client.recv(12).decode())
    except ConnectionError:
        print("")
"""

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as other users")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A listener, and our own connection to it as it was accepted."""
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(str(tmp_path / "s.sock"))
        listener.listen()
        client.connect(str(tmp_path / "s.sock"))
        accepted, _ = listener.accept()
        with accepted:
            yield listener, accepted


def test_this_user_is_admitted(pair: tuple[socket.socket, socket.socket]) -> None:
    rule = peer_rule(pair[0])
    assert rule == PeerRule(os.getuid(), None) or os.stat(pair[0].getsockname()).st_mode & 0o020
    assert rule is not None and rule.admits(pair[1])


def test_the_group_counts_only_if_it_may_write(pair: tuple[socket.socket, socket.socket]) -> None:
    path = pair[0].getsockname()
    os.chmod(path, 0o640)
    assert peer_rule(pair[0]) == PeerRule(os.getuid(), None)
    os.chmod(path, 0o660)
    assert peer_rule(pair[0]) == PeerRule(os.getuid(), os.stat(path).st_gid)


@pytest.mark.skipif(os.getuid() == 0, reason="root is always admitted")
def test_members_of_the_group_are_admitted(pair: tuple[socket.socket, socket.socket]) -> None:
    other = os.getuid() + 1
    assert not PeerRule(other, None).admits(pair[1])
    assert PeerRule(other, os.getgid()).admits(pair[1])
    assert all(PeerRule(other, group).admits(pair[1]) for group in os.getgroups())


def test_tcp_knows_no_users() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert peer_rule(listener) is None


async def _ask_as(path: str, user: int, *groups: int) -> str:
    """The first bytes of the answer to a process that connects as another user; none if it is disconnected."""
    arguments = ["-S", "-c", ASK_AS, path, str(user), *map(str, groups)]
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode().strip()


@needs_root
async def test_strangers_are_disconnected_even_where_the_file_lets_them_in(
    start_frontend: StartFrontend, socket_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    running = await start_frontend()
    os.chmod(socket_dir, 0o755)
    os.chmod(running.path, 0o666)
    assert await _ask_as(running.path, NOBODY) == ""
    assert f"uid {NOBODY}, gid {NOBODY}" in caplog.text
    assert (await running.get("/livez"))[0] == 200


@needs_root
@pytest.mark.parametrize(("group", "is_admitted"), [(GROUP, True), (GROUP + 1, False)])
def test_all_groups_of_a_process_count(socket_dir: Path, group: int, is_admitted: bool) -> None:
    path = socket_dir / "s.sock"
    os.chmod(socket_dir, 0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        os.chown(path, -1, GROUP)
        # The kernel lets everybody in, so that it is the rule that decides.
        os.chmod(path, 0o666)
        listener.listen()
        rule = peer_rule(listener)
        arguments = ["-S", "-c", ASK_AS, str(path), str(NOBODY), str(group)]
        with subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL) as process:
            accepted, _ = listener.accept()
            with accepted:
                assert rule is not None and rule.admits(accepted) == is_admitted
        assert process.returncode == 0

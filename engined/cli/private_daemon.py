"""A daemon for one command alone: on a Unix socket in a private folder, without a port, gone when the command ends,
however it ends. Runs in the command's process."""

import asyncio
import dataclasses
import time
from pathlib import Path

from engined.client import AsyncClient, ClientError
from engined.config.schema import Config
from engined.errors import StartupError
from engined.ipc.paths import RuntimeDirectory
from engined.process.launch import ChildProcess, ChildSpec, describe_exit
from engined.protocol.codec import to_builtins

POLL_SECONDS = 0.1
STOP_TIMEOUT = 10.0
"""Seconds between SIGTERM and SIGKILL."""
NAME = "the private engined"


class PrivateDaemon:
    """Starts with the block and ends with it. The parent's death ends it too, at once."""

    def __init__(self, config: Config) -> None:
        """`config` says everything but where it listens and what it keeps, which is private."""
        self._directory = RuntimeDirectory()
        self.socket_path = self._directory.socket_path("api")
        data_dir = str(Path(self._directory.path) / "data")
        server = dataclasses.replace(
            config.server,
            host="none",
            uds=str(self.socket_path),
            api_key=(),
            api_keys_file=None,
            tls_certificate=None,
            tls_key=None,
            tls_client_ca=None,
            data_dir=data_dir,
        )
        self._startup_timeout = config.parallel.startup_timeout
        self._spec = ChildSpec(
            name="supervisor",
            entry="engined.supervisor.private",
            data=to_builtins(dataclasses.replace(config, server=server)),
            log_level=config.server.log_level,
            log_format=config.server.log_format,
        )
        self._child: ChildProcess | None = None

    def __enter__(self) -> "PrivateDaemon":
        try:
            self._child = ChildProcess.start(self._spec)
        except BaseException:
            self._directory.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        child = self._running_child()
        child.stop(STOP_TIMEOUT)
        child.close()
        self._directory.__exit__()

    async def until_ready(self) -> None:
        """Wait until it answers, however long it loads or downloads.

        Raises StartupError, with the daemon's own cause, if it does not come up: it ends itself when its children make
        no progress. That it lives is all that has to be watched here.
        """
        async with AsyncClient(uds=self.socket_path) as client:
            while True:
                try:
                    await client.health()
                except ClientError:
                    self._check_alive()
                else:
                    return
                silence = time.monotonic() - self._running_child().heartbeat.read().time
                if silence > self._startup_timeout:
                    raise StartupError(f"{NAME} gave no sign of life for {silence:.0f} s: raise --startup-timeout")
                await asyncio.sleep(POLL_SECONDS)

    async def until_end(self) -> None:
        """Wait for its end, which is always a failure: StartupError with the cause."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        pidfd = self._running_child().pidfd
        loop.add_reader(pidfd, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(pidfd)
        self._check_alive()

    def _check_alive(self) -> None:
        child = self._running_child()
        child.read_status()
        code = child.poll()
        if code is None:
            return
        cause = child.failure.text if child.failure is not None else f"{describe_exit(NAME, code)}; see above"
        raise StartupError(cause, code if code > 0 else StartupError.exit_code)

    def _running_child(self) -> ChildProcess:
        assert self._child is not None, "use PrivateDaemon with `with`"
        return self._child

"""Finds out whether a constraint can be kept, before a request goes to the engine. Frontend process.

The library counts its work, but not all of it: some intersections of patterns take hours and gigabytes. So it runs in a
process of its own, which is killed at the deadline, and started when the first constraint comes. What passed is
remembered; the engine compiles it again, and need not fear it.
"""

import asyncio
import json
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from engined.errors import RequestError
from engined.grammar.cache import ByteBoundCache
from engined.grammar.limits import COMPILE_SECONDS
from engined.process.launch import ChildProcess, ChildSpec
from engined.protocol.grammar import GrammarSpec

START_SECONDS = 60.0
PASSED_BYTES = 8 << 20
MAX_LINE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Link:
    """A running child, and the two ends of its line."""

    process: ChildProcess
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def answer(self, seconds: float) -> str | None:
        """The next line. Raises TimeoutError, and EOFError if the child died."""
        async with asyncio.timeout(seconds):
            line = await self.reader.readline()
        if not line:
            raise EOFError
        fault: str | None = json.loads(line)
        return fault

    def end(self) -> None:
        """Kill the child, whatever it does."""
        self.writer.close()
        self.process.stop(0)
        self.process.close()


class GrammarChecker:
    """Owns the child process, which compiles one constraint at a time, and what is known of earlier ones."""

    def __init__(self, read_tokenizer: Callable[[], str], vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """`read_tokenizer` gives the model's tokenizer as JSON; `vocab_size` is that of its logits."""
        self._read_tokenizer = read_tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = list(eos_token_ids)
        self._passed: ByteBoundCache[GrammarSpec, bool] = ByteBoundCache(PASSED_BYTES)
        self._turn = asyncio.Lock()
        self._link: _Link | None = None

    async def check(self, grammar: GrammarSpec, param: str) -> None:
        """Raises RequestError naming `param` and the reason if the grammar cannot be kept."""
        if self._passed.get(grammar):
            return
        async with self._turn:
            fault = await self._compile(grammar)
        if fault is not None:
            raise RequestError(f"{param}: {fault}", param=param)
        self._passed.put(grammar, True, len(grammar.value))

    def close(self) -> None:
        """End the child."""
        if self._link is not None:
            self._link.end()
            self._link = None

    async def _compile(self, grammar: GrammarSpec) -> str | None:
        """Why the grammar cannot be kept."""
        if self._link is None:
            self._link = await self._start()
        link, is_answered = self._link, False
        try:
            link.writer.write(json.dumps(asdict(grammar)).encode() + b"\n")
            fault = await link.answer(COMPILE_SECONDS)
            is_answered = True
        except TimeoutError:
            return f"it did not compile within {COMPILE_SECONDS} s: make it simpler"
        except (EOFError, ConnectionError):
            return "the compiler broke down over it: make it simpler"
        finally:
            # Also where the client went away: the next one must not get this answer.
            if not is_answered:
                self.close()
        return fault

    async def _start(self) -> _Link:
        """A child that is ready. Raises RequestError 503 if it does not come up."""
        tokenizer = await asyncio.to_thread(self._read_tokenizer)
        ours, theirs = socket.socketpair()
        with theirs, os.fdopen(os.memfd_create("tokenizer"), "w+b") as file:
            file.write(tokenizer.encode())
            file.seek(0)
            process = ChildProcess.start(self._spec(theirs.fileno(), file.fileno()))
        reader, writer = await asyncio.open_connection(sock=ours, limit=MAX_LINE)
        link, is_ready = _Link(process=process, reader=reader, writer=writer), False
        try:
            await link.answer(START_SECONDS)
            is_ready = True
        except (TimeoutError, EOFError, ConnectionError) as error:
            raise RequestError(
                "the process that compiles grammars did not start: see the log of the server",
                status=503,
                type="server_error",
                code="grammar_compiler_unavailable",
            ) from error
        finally:
            if not is_ready:
                link.end()
        return link

    def _spec(self, link_fd: int, tokenizer_fd: int) -> ChildSpec:
        return ChildSpec(
            name="grammar checker",
            entry="engined.frontend.rendering.grammar_child",
            data={
                "vocab_size": self._vocab_size,
                "eos_token_ids": self._eos_token_ids,
                "deadline_s": START_SECONDS,
            },
            fds={"link": link_fd, "tokenizer": tokenizer_fd},
        )

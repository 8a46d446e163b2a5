"""Requests whose grammar is being compiled: they wait here, in nobody's way, until the scheduler can take them.

Touched by the busy loop only. The threads compile, and hand back what they made through the loop's input queue.
"""

import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from engined.core.commands import GrammarCompiled, InputQueue
from engined.errors import GrammarError
from engined.grammar.matcher_factory import MatcherFactory
from engined.scheduler.request import Request

logger = logging.getLogger(__name__)

_NUM_THREADS = 2


class GrammarQueue:
    """Owns the requests that wait for their grammar, and the threads that compile."""

    def __init__(self, matchers: MatcherFactory, inputs: InputQueue) -> None:
        self._matchers = matchers
        self._inputs = inputs
        self._waiting: dict[str, Request] = {}
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="grammar")

    def add(self, request: Request) -> None:
        """Begin to compile; a GrammarCompiled command will follow."""
        self._waiting[request.request_id] = request
        self._threads.submit(self._compile, request)

    def take(self, request: Request) -> bool:
        """Let a request go whose grammar is compiled; False if it was aborted meanwhile."""
        if self._waiting.get(request.request_id) is not request:
            return False
        del self._waiting[request.request_id]
        return True

    def abort_requests(self, request_ids: Iterable[str]) -> list[Request]:
        """Forget requests; returns those that were here."""
        return [self._waiting.pop(request_id) for request_id in request_ids if request_id in self._waiting]

    def abort_client(self, client_index: int) -> None:
        """Forget the requests of a client that is gone."""
        self._waiting = {
            request_id: request for request_id, request in self._waiting.items() if request.client_index != client_index
        }

    def close(self) -> None:
        """End the threads; work that has not begun is dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _compile(self, request: Request) -> None:
        try:
            matcher = self._matchers.create(request.grammar, request.reasoning)
        except GrammarError as error:
            self._inputs.put(GrammarCompiled(request, None, f"the grammar cannot be compiled: {error}"))
        except BaseException as error:
            # Whatever goes wrong here is this request's misfortune alone, and a panic of the library is no Exception.
            logger.exception("request %s: its grammar broke the compiler", request.request_id)
            self._inputs.put(GrammarCompiled(request, None, f"the grammar broke the compiler: {error}"))
        else:
            self._inputs.put(GrammarCompiled(request, matcher))

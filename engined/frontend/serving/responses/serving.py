"""POST /v1/responses: from the body to a `Generation`. Frontend process; called by the route.

The conversation becomes a chat request, so that it is rendered, checked and sampled as /v1/chat/completions would.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from engined.errors import ContextLengthError, RequestError
from engined.frontend.api.chat import ChatCompletionRequest
from engined.frontend.api.response_items import Item
from engined.frontend.api.responses import ResponsesRequest
from engined.frontend.serving.chat import ChatResult, ChatServing
from engined.frontend.serving.context import ServingContext
from engined.frontend.serving.generation import Generation, ResponseFormatter
from engined.frontend.serving.responses.conversion import begun_response, check_request, rename_param, to_chat_request
from engined.frontend.serving.responses.formatter import ResponsesFormatter
from engined.frontend.serving.responses.items import check_results, parse_input
from engined.frontend.serving.responses.store import ResponseRecord, ResponseStore, StoredItem
from engined.frontend.serving.responses.turns import find_starts, to_messages


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks, and since when."""

    owner: bytes
    """The API key, as a digest; empty if the server has none."""
    label: str
    """The request id that the log and the client see."""
    arrival_time: float


class ResponsesServing:
    """Turns requests into generations whose formatters fill the store."""

    def __init__(self, context: ServingContext, store: ResponseStore) -> None:
        self._context = context
        self._store = store
        self._chat = ChatServing(context)

    async def prepare(self, request: ResponsesRequest, caller: Caller) -> Generation:
        """Check and render one request. Raises RequestError for everything that is the client's fault."""
        is_stored = self._resolve_store(request)
        items, chat_request = await self._resolve_conversation(request, caller.owner)

        def make_formatter(result: ChatResult) -> ResponseFormatter:
            record = ResponseRecord(store=self._store, owner=caller.owner, input_items=tuple(items))
            response = begun_response(request, result, is_stored=is_stored)
            return ResponsesFormatter(response, result, record if is_stored else None)

        try:
            return await self._chat.prepare(
                chat_request,
                caller.arrival_time,
                caller.label,
                response_id=f"resp_{uuid.uuid4().hex}",
                make_formatter=make_formatter,
            )
        except RequestError as error:
            raise rename_param(error, request) from error

    async def count_input_tokens(self, request: ResponsesRequest, owner: bytes) -> int:
        """Tokens of the prompt that the request would have. Raises RequestError as `prepare` does."""
        self._context.check_model(request.model)
        _, chat_request = await self._resolve_conversation(request, owner)
        try:
            await self._chat.check(chat_request)
            engine_input = await self._chat.render(chat_request, min_output_tokens=0)
        except RequestError as error:
            raise rename_param(error, request) from error
        return len(engine_input.prompt_token_ids)

    def _resolve_store(self, request: ResponsesRequest) -> bool:
        if request.store and not self._store.is_enabled:
            raise RequestError(
                "store: this server keeps no responses; leave it out, or start engined with a --responses-store-size "
                "above 0",
                param="store",
                code="unsupported_parameter",
            )
        return self._store.is_enabled and request.store is not False

    async def _resolve_conversation(
        self, request: ResponsesRequest, owner: bytes
    ) -> tuple[list[StoredItem], ChatCompletionRequest]:
        """The items that the model gets to see, and the chat request that holds them."""
        self._context.require_runner("generate", "/v1/responses")
        check_request(request)
        earlier = self._earlier_items(request, owner)
        new = parse_input(request.input)
        items = [*(item.unpack() for item in earlier), *new]
        check_results(new, items[: len(earlier)])
        start = await self._find_start(request, items) if request.truncation == "auto" else 0
        stored = [*earlier, *map(StoredItem.pack, new)]
        return stored[start:], to_chat_request(request, to_messages(items[start:]))

    def _earlier_items(self, request: ResponsesRequest, owner: bytes) -> Sequence[StoredItem]:
        if request.previous_response_id is None:
            return ()
        param = "previous_response_id"
        try:
            response = self._store.get(request.previous_response_id, owner)
        except RequestError as error:
            raise RequestError(
                f"{param}: {error}; send the whole conversation in input",
                param=param,
                code="previous_response_not_found",
                status=404,
            ) from error
        if response.status == "failed":
            raise RequestError(f"{param}: that response failed; continue the one before it", param=param)
        return response.conversation

    async def _find_start(self, request: ResponsesRequest, items: Sequence[Item]) -> int:
        """How many of the oldest items to leave out, so that the prompt leaves room for the answer."""
        starts = find_starts(items)
        low, high = 0, len(starts) - 1
        probe = 0  # most conversations fit as they are
        while low < high:
            if await self._fits(request, items[starts[probe] :]):
                high = probe
            else:
                low = probe + 1
            probe = (low + high) // 2
        return starts[low]

    async def _fits(self, request: ResponsesRequest, items: Sequence[Item]) -> bool:
        max_model_len = self._context.engine.require_ready().max_model_len
        wanted = request.max_output_tokens or max_model_len // 4
        min_output_tokens = min(wanted, max_model_len // 2)
        try:
            await self._chat.render(to_chat_request(request, to_messages(items)), min_output_tokens=min_output_tokens)
        except ContextLengthError:
            return False
        except RequestError as error:
            raise rename_param(error, request) from error
        return True

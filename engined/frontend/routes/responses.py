"""POST /v1/responses, and the stored responses under /v1/responses/{id}. Frontend process."""

import re
import time
from collections.abc import Mapping
from typing import Annotated, Literal, get_args

from aiohttp import web
from msgspec import Meta

from engined.errors import RequestError
from engined.frontend.api.operation import BODY_ERRORS, READ_ERRORS, Operation, Parameter
from engined.frontend.api.parser import BodyParser
from engined.frontend.api.response_events import EVENTS
from engined.frontend.api.response_object import DeletedResponse, InputItemList, InputTokenCount, Response
from engined.frontend.api.responses import ResponsesRequest
from engined.frontend.auth import CALLER_KEY
from engined.frontend.http_errors import struct_response
from engined.frontend.middleware import REQUEST_ID
from engined.frontend.routes.answer import answer_generation
from engined.frontend.routes.body import parse_json_body
from engined.frontend.serving.context import ServingContext
from engined.frontend.serving.responses.serving import Caller, ResponsesServing
from engined.frontend.serving.responses.store import ResponseStore, StoredResponse

DEFAULT_LIMIT = 20
MAX_LIMIT = 100
Order = Literal["asc", "desc"]


class ResponsesRoutes:
    """The Responses API: answers, and those that are kept."""

    def __init__(self, context: ServingContext) -> None:
        server = context.server
        self._engine = context.engine
        self._store = ResponseStore(server.responses_store_size, server.responses_store_memory)
        self._serving = ResponsesServing(context, self._store)
        self._parser = BodyParser(ResponsesRequest, server.unknown_fields)

    def register(self, router: web.UrlDispatcher) -> None:
        """Add the routes."""
        router.add_post("/v1/responses", self.create)
        router.add_post("/v1/responses/input_tokens", self.count_input_tokens)
        router.add_get("/v1/responses/{response_id}", self.retrieve)
        router.add_delete("/v1/responses/{response_id}", self.delete)
        router.add_get("/v1/responses/{response_id}/input_items", self.list_input_items)
        router.add_post("/v1/responses/{response_id}/cancel", self.cancel)

    async def create(self, request: web.Request) -> web.StreamResponse:
        """Answer a text or a conversation."""
        arrival_time = time.monotonic()
        body = await parse_json_body(request, self._parser)
        caller = Caller(owner=request[CALLER_KEY], label=request[REQUEST_ID], arrival_time=arrival_time)
        generation = await self._serving.prepare(body, caller)
        return await answer_generation(request, self._engine, generation, is_stream=bool(body.stream))

    async def count_input_tokens(self, request: web.Request) -> web.Response:
        """Count the prompt tokens of a request without answering it."""
        body = await parse_json_body(request, self._parser)
        num_tokens = await self._serving.count_input_tokens(body, request[CALLER_KEY])
        return struct_response(InputTokenCount(input_tokens=num_tokens))

    async def retrieve(self, request: web.Request) -> web.Response:
        """Read a stored response."""
        stored = self._stored(request)
        for name in ("stream", "starting_after"):
            if request.query.get(name, "false") != "false":
                raise RequestError(
                    f"{name}: only the first answer is streamed; read the stored response whole",
                    param=name,
                    code="unsupported_parameter",
                )
        return web.Response(body=stored.body, content_type="application/json")

    async def delete(self, request: web.Request) -> web.Response:
        """Forget a stored response."""
        response_id = request.match_info["response_id"]
        self._store.delete(response_id, request[CALLER_KEY])
        return struct_response(DeletedResponse(id=response_id))

    async def list_input_items(self, request: web.Request) -> web.Response:
        """List the items that a stored response answered, those of earlier turns included."""
        return struct_response(_page(self._stored(request), request.query))

    async def cancel(self, request: web.Request) -> web.Response:
        """Refuse: a response that is stored has ended."""
        self._stored(request)
        raise RequestError(
            "only background responses can be cancelled, and there are none here; a response that is being generated "
            "ends when its connection is closed",
            code="unsupported_operation",
        )

    def _stored(self, request: web.Request) -> StoredResponse:
        return self._store.get(request.match_info["response_id"], request[CALLER_KEY])

    def operations(self) -> tuple[Operation, ...]:
        """What the routes answer."""
        limit = Annotated[int, Meta(ge=1, le=MAX_LIMIT)]
        errors = (404, *READ_ERRORS)
        return (
            Operation(
                method="POST",
                path="/v1/responses",
                summary="Answer a text or a conversation",
                tag="Responses",
                request=ResponsesRequest,
                example={"input": "What is the capital of France?"},
                response=Response,
                events=EVENTS,
                error_statuses=BODY_ERRORS,
            ),
            Operation(
                method="POST",
                path="/v1/responses/input_tokens",
                summary="Count the prompt tokens of a request",
                tag="Responses",
                request=ResponsesRequest,
                example={"input": "What is the capital of France?"},
                response=InputTokenCount,
                error_statuses=BODY_ERRORS,
            ),
            Operation(
                method="GET",
                path="/v1/responses/{response_id}",
                summary="Read a stored response",
                tag="Responses",
                response=Response,
                error_statuses=(400, *errors),
            ),
            Operation(
                method="DELETE",
                path="/v1/responses/{response_id}",
                summary="Forget a stored response",
                tag="Responses",
                response=DeletedResponse,
                error_statuses=errors,
            ),
            Operation(
                method="GET",
                path="/v1/responses/{response_id}/input_items",
                summary="List the items that a stored response answered",
                tag="Responses",
                parameters=(
                    Parameter(name="limit", description=f"Items of a page; default {DEFAULT_LIMIT}.", type=limit),
                    Parameter(name="order", description="Default desc: the newest first.", type=Order),
                    Parameter(name="after", description="The last item of the page before."),
                ),
                response=InputItemList,
                error_statuses=(400, *errors),
            ),
            Operation(
                method="POST",
                path="/v1/responses/{response_id}/cancel",
                summary="Always refused: only background responses can be cancelled",
                tag="Responses",
                error_statuses=(400, *errors),
            ),
        )


def _page(stored: StoredResponse, query: Mapping[str, str]) -> InputItemList:
    """One page of the input items. Raises RequestError naming the part of the query that is wrong."""
    order, limit = query.get("order", "desc"), query.get("limit", str(DEFAULT_LIMIT))
    if order not in get_args(Order):
        raise RequestError("order must be asc or desc", param="order")
    if re.fullmatch("[0-9]{1,3}", limit, re.ASCII) is None or not 1 <= int(limit) <= MAX_LIMIT:
        raise RequestError(f"limit must be from 1 to {MAX_LIMIT}", param="limit")
    items = stored.input_items if order == "asc" else stored.input_items[::-1]
    after = query.get("after")
    if after is not None:
        positions = [position for position, item in enumerate(items) if item.id == after]
        if not positions:
            raise RequestError("after must be the id of an item of this response", param="after")
        items = items[positions[0] + 1 :]
    page = items[: int(limit)]
    return InputItemList(
        data=[item.unpack() for item in page],
        first_id=page[0].id if page else None,
        last_id=page[-1].id if page else None,
        has_more=len(items) > len(page),
    )

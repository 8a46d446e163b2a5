"""/v1/batches: many requests at once, computed behind all others. Frontend process."""

from typing import Annotated

from aiohttp import web
from msgspec import Meta

from engined.errors import RequestError
from engined.frontend.access.caller import CALLER
from engined.frontend.api.batches import (
    MAX_METADATA_KEY,
    MAX_METADATA_PAIRS,
    MAX_METADATA_VALUE,
    BatchList,
    BatchObject,
    CreateBatchRequest,
)
from engined.frontend.api.operation import BODY_ERRORS, READ_ERRORS, Operation, Parameter
from engined.frontend.api.parser import BodyParser
from engined.frontend.auth import CALLER_KEY
from engined.frontend.batches.service import BatchService
from engined.frontend.http_errors import struct_response
from engined.frontend.routes.body import read_json_body
from engined.frontend.routes.paging import take_page

DEFAULT_PAGE = 20
MAX_PAGE = 100


class BatchRoutes:
    """Create, follow and cancel batches."""

    def __init__(self, service: BatchService) -> None:
        self._service = service
        self._parser = BodyParser(CreateBatchRequest)

    def register(self, router: web.UrlDispatcher) -> None:
        """Add the routes."""
        router.add_post("/v1/batches", self.create)
        router.add_get("/v1/batches", self.list_batches)
        router.add_get("/v1/batches/{batch_id}", self.retrieve)
        router.add_post("/v1/batches/{batch_id}/cancel", self.cancel)

    async def create(self, request: web.Request) -> web.Response:
        """Begin a batch."""
        body = self._parser.parse(await read_json_body(request))
        if body.completion_window != "24h":
            raise RequestError("completion_window must be 24h", param="completion_window")
        _check_metadata(body.metadata or {})
        return struct_response(self._service.create(body, _owner(request), request[CALLER].name))

    async def list_batches(self, request: web.Request) -> web.Response:
        """List the batches, newest first."""
        batches = self._service.list(_owner(request))
        page, has_more = take_page(batches, request.query, default=DEFAULT_PAGE, maximum=MAX_PAGE)
        first_id, last_id = (page[0].id, page[-1].id) if page else (None, None)
        return struct_response(BatchList(data=page, first_id=first_id, last_id=last_id, has_more=has_more))

    async def retrieve(self, request: web.Request) -> web.Response:
        """Tell how a batch stands."""
        return struct_response(self._service.get(request.match_info["batch_id"], _owner(request)))

    async def cancel(self, request: web.Request) -> web.Response:
        """Give up what is not computed yet; the results so far become files."""
        return struct_response(await self._service.cancel(request.match_info["batch_id"], _owner(request)))

    def operations(self) -> tuple[Operation, ...]:
        """What the routes take and answer."""
        limit = Annotated[int, Meta(ge=1, le=MAX_PAGE)]
        return (
            Operation(
                method="POST",
                path="/v1/batches",
                summary="Begin a batch",
                tag="Batch",
                request=CreateBatchRequest,
                example={"input_file_id": "file-...", "endpoint": "/v1/completions", "completion_window": "24h"},
                response=BatchObject,
                error_statuses=BODY_ERRORS,
            ),
            Operation(
                method="GET",
                path="/v1/batches",
                summary="List the batches",
                tag="Batch",
                parameters=(
                    Parameter(name="limit", description=f"Batches of a page; default {DEFAULT_PAGE}.", type=limit),
                    Parameter(name="after", description="The last batch of the page before."),
                ),
                response=BatchList,
                error_statuses=(400, *READ_ERRORS),
            ),
            Operation(
                method="GET",
                path="/v1/batches/{batch_id}",
                summary="Tell how a batch stands",
                tag="Batch",
                response=BatchObject,
                error_statuses=(404, *READ_ERRORS),
            ),
            Operation(
                method="POST",
                path="/v1/batches/{batch_id}/cancel",
                summary="Cancel a batch",
                tag="Batch",
                response=BatchObject,
                error_statuses=(400, 404, *READ_ERRORS),
            ),
        )


def _check_metadata(metadata: dict[str, str]) -> None:
    if len(metadata) > MAX_METADATA_PAIRS:
        raise RequestError(f"metadata may hold {MAX_METADATA_PAIRS} pairs", param="metadata")
    for key, value in metadata.items():
        if len(key) > MAX_METADATA_KEY or len(value) > MAX_METADATA_VALUE:
            raise RequestError(
                f"metadata: a key may have {MAX_METADATA_KEY} characters, a value {MAX_METADATA_VALUE}",
                param="metadata",
            )


def _owner(request: web.Request) -> str:
    return request[CALLER_KEY].hex()

"""Reads the body of a JSON request. Frontend process; used by the routes."""

import asyncio
import re
from typing import TypeVar

from aiohttp import web
from msgspec import Struct

from engined.errors import RequestError
from engined.frontend.api.parser import BodyParser
from engined.frontend.off_loop import LARGE_BYTES, call_off_loop

T = TypeVar("T", bound=Struct)

BODY_SECONDS = 30.0
"""Until the whole body must be there; also ends one whose chunks are malformed, which aiohttp would wait for."""
_IGNORED_FIELDS = web.RequestKey("ignored_fields", list[str])
_MAX_WARNING_LENGTH = 1024
_UNPRINTABLE = re.compile(r"[^\x21-\x7e]")


async def read_json_body(request: web.Request) -> bytes:
    """The raw body. Raises RequestError 415 for what is not plain JSON, 408 for what does not come.

    What is too large is refused by aiohttp while it is read, and here if it says so itself. The content type is also
    what keeps web pages of other origins from posting without a preflight.
    """
    if request.content_type != "application/json":
        raise RequestError("send the body as Content-Type: application/json", status=415, code="unsupported_media_type")
    if request.charset is not None and request.charset.lower() not in ("utf-8", "utf8"):
        raise RequestError("send the body as UTF-8", status=415, code="unsupported_media_type")
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise RequestError("send the body uncompressed", status=415, code="unsupported_media_type")
    if (request.content_length or 0) > request.client_max_size:
        raise web.HTTPRequestEntityTooLarge(request.client_max_size, request.content_length or 0)
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except TimeoutError:
        text = f"the body did not come in {BODY_SECONDS:.0f} seconds"
        raise RequestError(text, status=408, code="request_timeout") from None


async def parse_json_body(request: web.Request, parser: BodyParser[T]) -> T:
    """Read and parse the body. Raises RequestError.

    Fields that the parser left out are named in the header `x-engined-warning` of whatever is answered.
    """
    data = await read_json_body(request)
    body, request[_IGNORED_FIELDS] = await call_off_loop(
        parser.parse_with_warnings, data, is_large=len(data) > LARGE_BYTES
    )
    return body


async def add_field_warning(request: web.Request, response: web.StreamResponse) -> None:
    """Signal handler: name the fields that were ignored."""
    if ignored := request.get(_IGNORED_FIELDS):
        names = ", ".join(_UNPRINTABLE.sub("?", name[:64]) for name in ignored)
        response.headers["x-engined-warning"] = f"unknown fields were ignored: {names}"[:_MAX_WARNING_LENGTH]

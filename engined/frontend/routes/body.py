"""Reads the body of a JSON request. Frontend process; used by the generation routes."""

from aiohttp import web

from engined.errors import RequestError


async def read_json_body(request: web.Request) -> bytes:
    """The raw body. Raises RequestError 415 for what is not plain JSON; aiohttp refuses what is too large.

    The content type is also what keeps web pages of other origins from posting without a preflight.
    """
    if request.content_type != "application/json":
        raise RequestError("send the body as Content-Type: application/json", status=415, code="unsupported_media_type")
    if request.charset is not None and request.charset.lower() not in ("utf-8", "utf8"):
        raise RequestError("send the body as UTF-8", status=415, code="unsupported_media_type")
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise RequestError("send the body uncompressed", status=415, code="unsupported_media_type")
    return await request.read()

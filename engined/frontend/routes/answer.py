"""Runs a prepared generation and answers with it, in whichever API's shape. Frontend process; used by the routes."""

from aiohttp import web

from engined.frontend.async_llm import AsyncLLM
from engined.frontend.auth import CALLER_KEY
from engined.frontend.http_errors import json_response
from engined.frontend.middleware import REQUEST_ID
from engined.frontend.serving.generation import Generation, collect_whole, scope_cache
from engined.frontend.serving.streaming import stream_generation


async def answer_generation(
    request: web.Request, engine: AsyncLLM, generation: Generation, *, is_stream: bool
) -> web.StreamResponse:
    """Stream the answer, or send it whole. Raises RequestError if it fails before the first output."""
    request[REQUEST_ID] = generation.label
    generation = scope_cache(generation, request[CALLER_KEY])
    if is_stream:
        return await stream_generation(request, engine, generation)
    return json_response(await collect_whole(engine, generation))

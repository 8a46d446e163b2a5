"""Runs a prepared generation and answers with it, in whichever API's shape. Frontend process; used by the routes."""

from aiohttp import web

from engined.frontend.access.caller import CALLER
from engined.frontend.access.routes import route_path
from engined.frontend.admission.middleware import PLACE
from engined.frontend.async_llm import AsyncLLM
from engined.frontend.http_errors import json_response
from engined.frontend.middleware import REQUEST_ID
from engined.frontend.request_log import RAN
from engined.frontend.serving.generation import Generation, attribute, collect_whole
from engined.frontend.serving.streaming import stream_generation


async def answer_generation(
    request: web.Request, engine: AsyncLLM, generation: Generation, *, is_stream: bool
) -> web.StreamResponse:
    """Stream the answer, or send it whole. Raises RequestError if it fails before the first output."""
    request[REQUEST_ID] = generation.label
    generation = attribute(generation, route_path(request) or "", request[CALLER])
    request[PLACE].settle(generation.requests)
    request[RAN] = True
    if is_stream:
        response = await stream_generation(request, engine, generation)
    else:
        response = json_response(await collect_whole(engine, generation))
    request[PLACE].note_usage(generation.usage.num_tokens)
    return response

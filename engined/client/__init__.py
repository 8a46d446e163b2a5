"""A small client of the HTTP service, over a Unix socket or TCP: `Client` is blocking, `AsyncClient` is for asyncio.

from engined.client import Client
answer = Client().chat([{"role": "user", "content": "Hello"}])
"""

from engined.client.asynchronous import AsyncClient
from engined.client.errors import ClientError, ServerUnreachableError
from engined.client.sync import Client

__all__ = ["AsyncClient", "Client", "ClientError", "ServerUnreachableError"]

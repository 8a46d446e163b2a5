"""Who sent a request, for everything that treats callers apart: limits, fairness, logs. Frontend process.

The auth middleware puts it on every request.
"""

from dataclasses import dataclass

from aiohttp import web

from engined.config.api_keys import ALL_SCOPES, KeyLimits, Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """One holder of a key. Two requests with the same key have the same caller, reloads of the keys aside."""

    key_id: bytes
    """SHA-256 of the key; empty where the server asks for none, and on open routes where none was sent."""
    name: str
    """The key's name, from the keys file; empty with an empty `key_id`. Fit for logs and labels."""
    scopes: frozenset[Scope]
    limits: KeyLimits


EVERYBODY = Caller(key_id=b"", name="", scopes=ALL_SCOPES, limits=KeyLimits())
"""The caller of every request to a server without keys."""
NOBODY = Caller(key_id=b"", name="", scopes=frozenset(), limits=KeyLimits())
"""The caller of an open route who sent no key to a server that has some."""

CALLER = web.RequestKey("caller", Caller)

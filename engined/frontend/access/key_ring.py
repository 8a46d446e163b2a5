"""The keys that are accepted now, and who holds them. Frontend process; the auth middleware asks for each request."""

import hmac
import logging
from collections.abc import Sequence

from engined.config.api_keys import ApiKey, digest_key, load_api_keys
from engined.config.schema import ServerConfig
from engined.frontend.access.caller import Caller

logger = logging.getLogger(__name__)


class KeyRing:
    """Knows keys by their digests only. `load` replaces them all at once; a request is judged by those it met."""

    def __init__(self, server: ServerConfig) -> None:
        """Raises ConfigError if the keys cannot be read."""
        self._server = server
        self._callers: tuple[Caller, ...] | None = None
        self.load()

    @property
    def is_open(self) -> bool:
        """Whether the server asks for no keys at all."""
        return self._callers is None

    def load(self) -> None:
        """Read the keys again. Raises ConfigError, and keeps those it has, if that fails."""
        keys = load_api_keys(self._server)
        self._callers = None if keys is None else tuple(_caller(key) for key in keys)
        if keys:
            logger.info("API keys read: %d", len(keys))
        elif keys is not None:
            logger.warning("the file of API keys holds none: every request is refused")

    def identify(self, sent: Sequence[str]) -> Caller | None:
        """Who holds one of the `sent` keys. All are compared, whatever the result, so that the time tells nothing."""
        found = None
        for digest in map(digest_key, sent):
            for caller in self._callers or ():
                if hmac.compare_digest(digest, caller.key_id):
                    found = caller
        return found


def _caller(key: ApiKey) -> Caller:
    return Caller(key_id=key.digest, name=key.name, scopes=key.scopes, limits=key.limits)

"""All that decides who may use the server, and its reload at SIGHUP. Frontend process; made by `app`, reloaded by
`server`."""

import logging

from engined.config.schema import ServerConfig
from engined.errors import ConfigError
from engined.frontend.access.addressing import Addressing
from engined.frontend.access.key_ring import KeyRing
from engined.frontend.access.tls import ReloadableTls

logger = logging.getLogger(__name__)


class AccessControl:
    """Keys, names and certificate of one frontend."""

    def __init__(self, server: ServerConfig) -> None:
        """Raises ConfigError if a file that the options name cannot be used."""
        self.keys = KeyRing(server)
        self.addressing = Addressing(server)
        self.tls = ReloadableTls(server)

    def reload(self) -> None:
        """Read the files of keys and certificate again. One that is bad is logged, and what it held before stays."""
        for part in (self.keys, self.tls):
            try:
                part.load()
            except ConfigError as error:
                logger.error("not reloaded, what was valid before stays valid: %s", error)

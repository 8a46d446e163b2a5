"""TLS of the TCP port, with a certificate that can be renewed while the server runs. Frontend process."""

import ssl

from engined.config.schema import ServerConfig
from engined.config.tls import load_tls_context


class ReloadableTls:
    """Owns the context that listeners are made with, and the one that new connections really use."""

    def __init__(self, server: ServerConfig) -> None:
        """Raises ConfigError if the files cannot be used."""
        self._server = server
        self._current = load_tls_context(server)
        self.context = self._current
        """For the listeners; None without a certificate."""
        if self.context is not None:
            self.context.sni_callback = self._use_current

    def load(self) -> None:
        """Read the files again, for new connections. Raises ConfigError, and keeps what it has, if that fails."""
        self._current = load_tls_context(self._server)

    def _use_current(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        # OpenSSL calls this at the start of every handshake, whether or not the client names a server.
        assert self._current is not None
        connection.context = self._current

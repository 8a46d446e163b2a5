"""The certificate of the TCP port. Read by the supervisor at the start, and by frontends, again at every SIGHUP."""

import ssl
from pathlib import Path

from engined.config.private_file import read_private_file
from engined.config.schema import ServerConfig
from engined.errors import ConfigError


def load_tls_context(server: ServerConfig) -> ssl.SSLContext | None:
    """What the server speaks TLS with (1.2 or newer), its files read anew; None without a certificate.

    Raises ConfigError if a file cannot be read or the key does not belong to the certificate.
    """
    if server.tls_certificate is None:
        return None
    assert server.tls_key is not None, "check_config sees to it"
    read_private_file(Path(server.tls_key), "--tls-key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        # Without a password function, OpenSSL would ask for one on the terminal.
        context.load_cert_chain(server.tls_certificate, server.tls_key, password=_refuse_password)
    except OSError as error:
        reason = _reason(error)
        raise ConfigError(
            f"--tls-certificate {server.tls_certificate}, --tls-key {server.tls_key}: {reason}; give a PEM file with "
            "the certificate and those that signed it, and one with its key, without a password"
        ) from None
    if server.tls_client_ca is not None:
        _require_client_certificates(context, server.tls_client_ca)
    return context


def _require_client_certificates(context: ssl.SSLContext, path: str) -> None:
    try:
        context.load_verify_locations(cafile=path)
    except OSError as error:
        reason = _reason(error)
        raise ConfigError(f"--tls-client-ca {path}: {reason}; give a PEM file with the signers' certificates") from None
    context.verify_mode = ssl.CERT_REQUIRED
    # A resumed session shows no certificate again: one whose signer is no longer trusted would go on. Only TLS 1.3 lets
    # us rule that out.
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0


def _refuse_password() -> str:
    return ""


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not PEM").replace("_", " ").lower()
    return error.strerror or str(error)

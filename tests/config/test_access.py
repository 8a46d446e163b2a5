"""The files and options of access: keys, certificates, and who could reach the server."""

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from engined.config.access_checks import check_access, check_exposure, is_loopback
from engined.config.api_keys import ALL_SCOPES, KeyLimits, digest_key, format_line, load_api_keys, parse_api_keys
from engined.config.load import load_config
from engined.config.schema import ServerConfig
from engined.errors import ConfigError

DIGEST = hashlib.sha256(b"secret").hexdigest()


def write(path: Path, text: str, mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_a_file_of_keys(tmp_path: Path) -> None:
    text = f"""
        # people
        alice   sha256:{DIGEST}  requests_per_minute=60 tokens_per_minute=10000 max_concurrency=4 weight=0.5
        bob     plain-key-of-bob scopes=inference,admin

        grafana sha256:{DIGEST.upper().replace("A", "B")} scopes=metrics
    """
    file = write(tmp_path / "keys", text)
    one, alice, bob, grafana = load_api_keys(ServerConfig(api_key=("flag-key",), api_keys_file=file)) or ()
    assert (one.name, one.digest, one.scopes) == ("key-1", digest_key("flag-key"), ALL_SCOPES)
    assert (alice.name, alice.digest, alice.scopes) == ("alice", bytes.fromhex(DIGEST), {"inference"})
    assert alice.limits == KeyLimits(requests_per_minute=60, tokens_per_minute=10_000, max_concurrency=4, weight=0.5)
    assert (bob.digest, bob.scopes, bob.limits) == (digest_key("plain-key-of-bob"), {"inference", "admin"}, KeyLimits())
    assert grafana.scopes == {"metrics"}


def test_no_keys_and_an_empty_file_differ(tmp_path: Path) -> None:
    assert load_api_keys(ServerConfig()) is None
    assert load_api_keys(ServerConfig(api_keys_file=write(tmp_path / "keys", "# nobody\n"))) == ()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("alice", "write the key's name, then the key"),
        ("al/ice key", "a name has up to 64"),
        ("x" * 65 + " key", "a name has up to 64"),
        ("alice sha256:1234", "64 hexadecimal digits"),
        (f"alice sha256:{DIGEST}00", "64 hexadecimal digits"),
        ("alice key scope=admin", "Did you mean scopes"),
        ("alice key hidden", "a setting is unknown"),
        ("alice key scopes=root", "give some of inference,metrics,admin"),
        ("alice key scopes=", "give some of inference,metrics,admin"),
        ("alice key scopes=admin scopes=metrics", "scopes is there twice"),
        ("alice key max_concurrency=0", "max_concurrency: give a whole number"),
        ("alice key requests_per_minute=1e3", "requests_per_minute: give a whole number"),
        ("alice key tokens_per_minute=99999999999", "tokens_per_minute: give a whole number"),
        ("alice key weight=0", "weight: give a number from"),
        ("alice key weight=nan", "weight: give a number from"),
        ("first other-key", "the name first is taken by keys, line 2"),
        ("second one-key", "second is the same key as keys, line 2"),
    ],
)
def test_a_bad_line_is_named(line: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_api_keys(f"# keys\nfirst one-key\n{line}\n", "keys")
    assert str(error.value).startswith("--api-keys-file: keys, line 3: ") and message in str(error.value)
    assert "hidden" not in str(error.value) and "one-key" not in str(error.value)


def test_names_and_keys_of_flags_count_too(tmp_path: Path) -> None:
    for line, message in (("key-1 other", "the name key-1 is taken"), ("alice flag-key", "alice is the same key")):
        server = ServerConfig(api_key=("flag-key",), api_keys_file=write(tmp_path / "keys", line))
        with pytest.raises(ConfigError, match=message):
            load_api_keys(server)


@pytest.mark.parametrize(("mode", "is_refused"), [(0o600, False), (0o640, False), (0o644, True), (0o602, True)])
def test_others_must_not_read_it(tmp_path: Path, mode: int, is_refused: bool) -> None:
    server = ServerConfig(api_keys_file=write(tmp_path / "keys", "alice key", mode))
    if is_refused:
        with pytest.raises(ConfigError, match="chmod o-rwx"):
            load_api_keys(server)
    else:
        assert len(load_api_keys(server) or ()) == 1


def test_what_is_no_file_of_keys(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "folder").mkdir(0o700)
    (tmp_path / "large").write_bytes(b"#" * (1 << 21))
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for path in tmp_path.iterdir():
        path.chmod(path.stat().st_mode & ~0o007)
    for name, message in (
        ("missing", "No such file"),
        ("pipe", "not a regular file"),
        ("folder", "Is a directory"),
        ("large", "larger than"),
        ("bytes", "not UTF-8"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_api_keys(ServerConfig(api_keys_file=str(tmp_path / name)))


def test_lines_are_written_as_they_are_read() -> None:
    line = format_line("alice", digest_key("k"), ["metrics", "admin"])
    [(_, key)] = parse_api_keys(line, "keys")
    assert (key.name, key.digest, key.scopes) == ("alice", digest_key("k"), {"metrics", "admin"})
    with pytest.raises(ConfigError, match="a name has"):
        format_line("a b", digest_key("k"), ["metrics"])


def test_systemd_may_hand_the_keys_over(tmp_path: Path) -> None:
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    assert load_config({}, environ, None).config.server.api_keys_file is None
    path = write(tmp_path / "api-keys", "alice key")
    loaded = load_config({}, environ, None)
    assert loaded.config.server.api_keys_file == path
    assert loaded.sources["api_keys_file"] == "systemd credential api-keys"
    assert load_config({"api_keys_file": "mine"}, environ, None).config.server.api_keys_file == "mine"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "2001:db8::1"])
def test_a_public_address_needs_a_key(host: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="engined keys new") as error:
        check_access(ServerConfig(host=host))
    assert host in str(error.value) and error.value.exit_code == 2
    check_access(ServerConfig(host=host, api_key=("k",)))
    check_access(ServerConfig(host=host, api_keys_file=write(tmp_path / "keys", "alice key")))
    check_access(ServerConfig(host=host, insecure_no_auth=True))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost", "none"])
def test_this_machine_needs_none(host: str) -> None:
    check_access(ServerConfig(host=host))


def test_sockets_of_a_service_manager_are_judged_by_their_address() -> None:
    with pytest.raises(ConfigError, match="can reach 10.0.0.1"):
        check_exposure(ServerConfig(), ["127.0.0.1", "10.0.0.1"])
    assert is_loopback("::ffff:127.0.0.1") and not is_loopback("::ffff:10.0.0.1") and not is_loopback("fe80::1%eth0")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"insecure_no_auth": True, "api_key": ("k",)}, "--insecure-no-auth"),
        ({"allowed_host": ("http://gpu",)}, "--allowed-host http://gpu"),
        ({"allowed_host": ("gpu:8000",)}, "--allowed-host gpu:8000"),
        ({"allowed_origin": ("chat.example.com",)}, "--allowed-origin chat.example.com"),
        ({"allowed_origin": ("https://chat.example.com/",)}, "--allowed-origin https://chat.example.com/"),
        ({"tls_certificate": "c"}, "belong together"),
        ({"tls_key": "k"}, "belong together"),
        ({"tls_client_ca": "ca"}, "--tls-client-ca needs"),
        ({"tls_certificate": "c", "tls_key": "k", "host": "none"}, "--host none opens none"),
        ({"tls_certificate": "c", "tls_key": "/nowhere"}, "--tls-key: cannot read /nowhere"),
    ],
)
def test_contradictions(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_access(ServerConfig(**options))  # type: ignore[arg-type]
    assert message in str(error.value)


def test_certificates_that_cannot_be_used(tmp_path: Path) -> None:
    for name in ("a", "b"):
        subject = ["-subj", "/CN=localhost", "-keyout", f"{name}.key", "-out", f"{name}.crt"]
        algorithm = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
        protection = ["-nodes"] if name == "a" else ["-passout", "pass:x"]
        subprocess.run(
            ["openssl", "req", "-x509", *algorithm, *subject, *protection],
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )
    (tmp_path / "b.key").chmod(0o600)
    paths = {name: str(tmp_path / name) for name in ("a.key", "a.crt", "b.key", "b.crt")}
    check_access(ServerConfig(tls_certificate=paths["a.crt"], tls_key=paths["a.key"]))
    for certificate, key, ca, message in (
        ("b.crt", "a.key", None, "key values mismatch"),
        ("a.key", "a.key", None, "give a PEM file"),
        ("b.crt", "b.key", None, "without a password"),
        ("a.crt", "a.key", "a.key", "--tls-client-ca"),
    ):
        server = ServerConfig(
            tls_certificate=paths[certificate], tls_key=paths[key], tls_client_ca=None if ca is None else paths[ca]
        )
        with pytest.raises(ConfigError, match=message):
            check_access(server)

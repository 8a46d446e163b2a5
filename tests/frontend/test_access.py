"""Who may use the server: keys and scopes on every route, names and web pages, TLS, and reloads while it serves."""

import asyncio
import hmac
import os
import re
import signal
import ssl
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from engined.config.api_keys import digest_key
from engined.config.schema import Config, ServerConfig
from engined.frontend.access.routes import ROUTE_ACCESS
from tests.frontend.conftest import RunningFrontend, StartFrontend

INFERENCE, METRICS, ADMIN = "key-for-inference", "key-for-metrics", "key-for-admin"
KEYS = f"alice {INFERENCE}\ngrafana {METRICS} scopes=metrics\nroot {ADMIN} scopes=admin\n"
COMPLETIONS = "/v1/completions"
BODY = {"prompt": "x", "max_tokens": 4}


def keys_file(folder: Path, text: str = KEYS) -> Path:
    path = folder / "api-keys"
    path.touch(0o600)
    path.write_text(text)
    return path


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def with_server(**options: Any) -> Config:
    return Config(server=ServerConfig(**options))


async def reload(frontend: RunningFrontend) -> None:
    os.kill(os.getpid(), signal.SIGHUP)
    await frontend.get("/livez")


async def status_of(frontend: RunningFrontend, path: str, key: str = "") -> int:
    async with frontend.client.get(f"http://engined{path}", headers=bearer(key)) as response:
        return response.status


async def send(port: int, *lines: str) -> tuple[int, str]:
    """Status and body of the answer to a request made of `lines`, over TCP."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write("\r\n".join((*lines, "Connection: close", "", "")).encode())
    async with asyncio.timeout(5):
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


async def test_every_route_states_what_it_asks(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    assert {resource.canonical for resource in frontend.app.router.resources()} == set(ROUTE_ACCESS)


async def test_a_route_that_states_nothing_is_closed(
    start_frontend: StartFrontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(ROUTE_ACCESS, "/version")  # type: ignore[arg-type]
    frontend = await start_frontend()
    status, body = await frontend.get("/version")
    assert (status, body["error"]["code"]) == (403, "forbidden")


async def test_scopes(start_frontend: StartFrontend, tmp_path: Path) -> None:
    frontend = await start_frontend(config=with_server(api_keys_file=str(keys_file(tmp_path))))
    keys = {"": None, "nope": None, INFERENCE: "inference", METRICS: "metrics", ADMIN: "admin"}
    for resource in frontend.app.router.resources():
        access = ROUTE_ACCESS[resource.canonical]
        path = re.sub(r"\{[^}]*\}", "x", resource.canonical)
        for method in {route.method for route in resource}:
            for key, scope in keys.items():
                async with frontend.client.request(method, f"http://engined{path}", headers=bearer(key)) as response:
                    is_allowed = access == "open" or scope == access or (access == "any key" and scope is not None)
                    assert (response.status in (401, 403)) != is_allowed, (method, path, key)
                    if not is_allowed:
                        assert response.status == (401 if scope is None else 403)
                        assert ("WWW-Authenticate" in response.headers) == (scope is None)
    _, body = await frontend.get("/metrics", headers=bearer(INFERENCE))
    assert body["error"]["code"] == "insufficient_scope"
    assert body["error"]["message"] == "the key alice may not use this route, which needs one with the scope metrics"
    assert (await frontend.get("/nowhere", headers=bearer(METRICS)))[0] == 404
    assert (await frontend.get(COMPLETIONS, headers=bearer(METRICS)))[0] == 405
    assert (await frontend.get("/nowhere"))[0] == (await frontend.get(COMPLETIONS))[0] == 401
    async with frontend.client.get("http://engined/metrics", headers={"x-api-key": METRICS}) as response:
        assert response.status == 200


async def test_keys_of_flags_open_everything(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend(config=with_server(api_key=("one",)))
    assert (await frontend.post("/reset_prefix_cache", None, headers=bearer("one")))[0] == 200
    assert await status_of(frontend, "/metrics", "one") == 200


async def test_keys_that_do_not_fit(start_frontend: StartFrontend, tmp_path: Path) -> None:
    frontend = await start_frontend(config=with_server(api_keys_file=str(keys_file(tmp_path))))
    reader, writer = await asyncio.open_unix_connection(frontend.path)
    keys = ("", "k" * 8000, "schlüssel", "\udcff\udcfe", f"{INFERENCE}x", INFERENCE[:-1], digest_key(INFERENCE).hex())
    for header in (f"{name}{key}" for key in keys for name in ("Authorization: Bearer ", "x-api-key: ")):
        head = f"GET /v1/models HTTP/1.1\r\nHost: x\r\n{header}\r\n\r\n"
        writer.write(head.encode("utf-8", errors="surrogateescape"))
        async with asyncio.timeout(5):
            answer = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"Content-Length: (\d+)", answer)
            assert length is not None
            await reader.readexactly(int(length[1]))
        assert b" 401 " in answer.split(b"\r\n")[0]
    writer.close()


async def test_all_keys_are_compared_whichever_was_sent(
    start_frontend: StartFrontend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frontend = await start_frontend(config=with_server(api_keys_file=str(keys_file(tmp_path))))
    compared: list[tuple[bytes, bytes]] = []
    compare_digest = hmac.compare_digest

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return compare_digest(a, b)

    monkeypatch.setattr("engined.frontend.access.key_ring.hmac.compare_digest", compare)
    for key in (INFERENCE, ADMIN, "nope"):
        compared.clear()
        await frontend.get("/version", headers=bearer(key))
        assert len({known for _, known in compared}) == len(compared) == 3
        assert all(len(sent) == len(known) == 32 for sent, known in compared)


async def test_keys_are_replaced_while_requests_run(start_frontend: StartFrontend, tmp_path: Path) -> None:
    path = keys_file(tmp_path)
    frontend = await start_frontend(config=with_server(api_keys_file=str(path)))
    frontend.engine.step_delay = 0.02
    body = {**BODY, "stream": True, "max_tokens": 20}
    async with frontend.client.post(f"http://engined{COMPLETIONS}", json=body, headers=bearer(INFERENCE)) as response:
        path.write_text("alice another-key\n")
        begin = time.monotonic()
        await reload(frontend)
        while (await frontend.get("/v1/models", headers=bearer("another-key")))[0] != 200:
            assert time.monotonic() - begin < 1
        assert (await frontend.get("/v1/models", headers=bearer(INFERENCE)))[0] == 401
        assert (await response.text()).endswith("data: [DONE]\n\n")


async def test_a_file_without_keys_lets_nobody_in(start_frontend: StartFrontend, tmp_path: Path) -> None:
    path = keys_file(tmp_path)
    frontend = await start_frontend(config=with_server(api_keys_file=str(path)))
    path.write_text("# all left\n")
    await reload(frontend)
    for key in ("", INFERENCE, ADMIN):
        assert await status_of(frontend, "/version", key) == 401
    assert await status_of(frontend, "/livez") == 200


async def test_a_bad_file_changes_nothing(
    start_frontend: StartFrontend, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = keys_file(tmp_path)
    frontend = await start_frontend(config=with_server(api_keys_file=str(path)))
    for text in ("alice\n", "alice another-key scopes=root\n", None):
        if text is None:
            path.unlink()
        else:
            path.write_text(text)
        caplog.clear()
        await reload(frontend)
        assert await status_of(frontend, "/v1/models", INFERENCE) == 200
        [error] = [record.message for record in caplog.records if record.levelname == "ERROR"]
        assert str(path) in error and "stays valid" in error and "another-key" not in error


async def test_without_keys_operators_must_be_here(
    start_frontend: StartFrontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    frontend = await start_frontend(tcp=True)
    lines = ("POST /reset_prefix_cache HTTP/1.1", "Host: localhost", "Content-Length: 0")
    assert (await frontend.post("/reset_prefix_cache", None))[0] == 200
    assert frontend.port is not None and (await send(frontend.port, *lines))[0] == 200
    # The only thing that a test on one machine cannot have is a peer on another.
    monkeypatch.setattr("engined.frontend.access.peers.is_loopback", lambda address: address != "127.0.0.1")
    status, body = await send(frontend.port, *lines)
    assert status == 403 and "only from its own machine" in body
    assert (await send(frontend.port, "GET /metrics HTTP/1.1", "Host: localhost"))[0] == 200
    assert (await frontend.post("/reset_prefix_cache", None))[0] == 200


async def test_names_of_the_server(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend(config=with_server(allowed_host=("gpu.example.com",)), tcp=True)
    port = frontend.port
    assert port is not None
    own = ["localhost", f"127.0.0.1:{port}", "192.168.7.7:80", "[::1]:8000", "LOCALHOST.", "GPU.example.com:443"]
    for host in own:
        assert (await send(port, "GET /version HTTP/1.1", f"Host: {host}"))[0] == 200, host
    foreign = ["evil.example.com", "localhost.evil.com", "127.0.0.1.evil.com", "x.gpu.example.com", "2130706433"]
    broken = ["localhost/version", "user@localhost", "localhost:port", "local host", "[::1", "localhost:123456", ""]
    for host in (*foreign, *broken):
        status, body = await send(port, "GET /version HTTP/1.1", f"Host: {host}")
        assert status == 400 and ("host_not_allowed" if host in foreign else "inval") in body, (host, body)
        for probe in ("/livez", "/readyz", "/health"):
            if host in foreign:
                assert (await send(port, f"GET {probe} HTTP/1.1", f"Host: {host}"))[0] == 200
    assert (await send(port, "GET /version HTTP/1.1", "Host: localhost", "Host: evil.example.com"))[0] == 400
    assert (await send(port, "GET /version HTTP/1.0"))[0] == 400
    # Who can open the Unix socket was not led there by a browser.
    assert (await frontend.get("/version", headers={"Host": "evil.example.com"}))[0] == 200


PATHS = [
    "http://evil.example.com/version",
    "http://localhost/version",
    "//version",
    "//evil.example.com/version",
    "/v1//models",
    "/v1/%2e%2e/version",
    "/v1/../version",
    "/./version",
    "/%2E/version",
    "/version;x",
    "/version/",
    "/version%2f",
    "/version%00",
    "/Version",
    "*",
]


@pytest.mark.parametrize("key", [None, "secret"])
async def test_spellings_of_paths(start_frontend: StartFrontend, key: str | None) -> None:
    frontend = await start_frontend(config=with_server(api_key=(key,) if key else ()), tcp=True)
    assert frontend.port is not None
    for path in PATHS:
        for method in ("GET", "OPTIONS"):
            lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
            status, body = await send(frontend.port, *lines)
            assert status in ((400, 404) if key is None else (400, 401)), (path, body)
            if key is not None:
                status, body = await send(frontend.port, *lines, f"Authorization: Bearer {key}")
                assert status in (400, 404), (path, body)


async def test_web_pages(start_frontend: StartFrontend) -> None:
    page = "https://chat.example.com"
    frontend = await start_frontend(config=with_server(allowed_origin=(page,), api_key=("k",)), tcp=True)
    base = f"http://127.0.0.1:{frontend.port}"
    headers = bearer("k")
    async with aiohttp.ClientSession(base) as client:
        for origin in (page, base):
            async with client.post(COMPLETIONS, json=BODY, headers={**headers, "Origin": origin}) as response:
                assert response.status == 200
                assert response.headers.get("Access-Control-Allow-Origin") == (page if origin == page else None)
                assert "Origin" in response.headers["Vary"]
        others = (
            "https://evil.example.com",
            "null",
            "http://chat.example.com",
            f"{page}.evil.com",
            "http://127.0.0.1:1",
        )
        for origin in others:
            for path in (COMPLETIONS, "/livez", "/nowhere"):
                async with client.post(path, json=BODY, headers={**headers, "Origin": origin}) as response:
                    assert response.status == 403, (origin, path)
                    assert "Access-Control-Allow-Origin" not in response.headers
                    assert (await response.json())["error"]["code"] == "origin_not_allowed"
        # A page must be able to read why it was refused, and a stream.
        async with client.get("/v1/models", headers={"Origin": page}) as response:
            assert response.status == 401 and response.headers["Access-Control-Allow-Origin"] == page
        async with client.post(
            COMPLETIONS, json={**BODY, "stream": True}, headers={**headers, "Origin": page}
        ) as response:
            assert response.status == 200 and response.headers["Access-Control-Allow-Origin"] == page
    assert (await frontend.get("/livez", headers={"Origin": "https://evil.example.com"}))[0] == 403


async def test_browsers_may_ask_beforehand(start_frontend: StartFrontend) -> None:
    page = "https://chat.example.com"
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    frontend = await start_frontend(config=with_server(allowed_origin=(page,), api_key=("k",)))
    async with frontend.client.options(f"http://engined{COMPLETIONS}", headers={"Origin": page, **asked}) as response:
        assert response.status == 204
        assert response.headers["Access-Control-Allow-Origin"] == page
        assert "POST" in response.headers["Access-Control-Allow-Methods"]
        assert response.headers["Access-Control-Allow-Headers"] == "authorization,content-type"
    for headers, status in (
        ({"Origin": "https://evil.example.com", **asked}, 403),
        (asked, 401),
        ({"Origin": page}, 401),
    ):
        async with frontend.client.options(f"http://engined{COMPLETIONS}", headers=headers) as response:
            assert response.status == status


async def test_every_page_may_be_allowed(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend(config=with_server(allowed_origin=("*",)))
    async with frontend.client.get("http://engined/version", headers={"Origin": "https://any.example"}) as response:
        assert response.status == 200 and response.headers["Access-Control-Allow-Origin"] == "https://any.example"


def make_certificate(folder: Path, name: str, *options: str) -> None:
    """NAME.crt and NAME.key for localhost, signed by itself or by what `options` say."""
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]
    names = ["-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", f"{name}.key", "-out", f"{name}.crt"]
    subprocess.run([*command, *names, *files, *options], cwd=folder, check=True, capture_output=True)
    (folder / f"{name}.key").chmod(0o600)


def trusting(*certificates: Path) -> ssl.SSLContext:
    context = ssl.create_default_context()
    for certificate in certificates:
        context.load_verify_locations(certificate)
    return context


async def fetch(frontend: RunningFrontend, tls: ssl.SSLContext) -> int:
    """Status of a request on a connection of its own."""
    async with (
        aiohttp.ClientSession() as client,
        client.get(f"https://localhost:{frontend.port}/version", ssl=tls) as response,
    ):
        return response.status


async def test_tls_and_its_renewal(start_frontend: StartFrontend, tmp_path: Path) -> None:
    for name in ("old", "new"):
        make_certificate(tmp_path, name)
    certificate, key = tmp_path / "server.crt", tmp_path / "server.key"

    def install(certificate_of: str, key_of: str) -> None:
        certificate.write_bytes((tmp_path / f"{certificate_of}.crt").read_bytes())
        key.touch(0o600)
        key.write_bytes((tmp_path / f"{key_of}.key").read_bytes())

    install("old", "old")
    frontend = await start_frontend(config=with_server(tls_certificate=str(certificate), tls_key=str(key)), tcp=True)
    old, new = trusting(tmp_path / "old.crt"), trusting(tmp_path / "new.crt")
    assert await fetch(frontend, old) == 200
    assert (await frontend.get("/version"))[0] == 200  # the Unix socket stays plain
    with pytest.raises(aiohttp.ClientError):
        async with aiohttp.request("GET", f"http://localhost:{frontend.port}/version"):
            pass
    install("new", "old")
    await reload(frontend)
    assert await fetch(frontend, old) == 200
    async with aiohttp.ClientSession() as client:
        url = f"https://localhost:{frontend.port}/version"
        async with client.get(url, ssl=old):
            install("new", "new")
            await reload(frontend)
        async with client.get(url, ssl=old) as response:
            assert response.status == 200  # on the connection that was open
    assert await fetch(frontend, new) == 200
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        await fetch(frontend, old)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_old_tls_is_refused(start_frontend: StartFrontend, tmp_path: Path) -> None:
    make_certificate(tmp_path, "server")
    paths = {"tls_certificate": str(tmp_path / "server.crt"), "tls_key": str(tmp_path / "server.key")}
    frontend = await start_frontend(config=with_server(**paths), tcp=True)
    for version, is_served in (
        (ssl.TLSVersion.TLSv1_1, False),
        (ssl.TLSVersion.TLSv1_2, True),
        (ssl.TLSVersion.TLSv1_3, True),
    ):
        context = trusting(tmp_path / "server.crt")
        # Otherwise the client's own library would refuse the old version before the server can.
        context.set_ciphers("DEFAULT@SECLEVEL=0")
        context.minimum_version, context.maximum_version = ssl.TLSVersion.MINIMUM_SUPPORTED, version
        if is_served:
            assert await fetch(frontend, context) == 200
        else:
            with pytest.raises(aiohttp.ClientConnectorError) as error:
                await fetch(frontend, context)
            # It was the server that hung up; the client's library would have said why.
            assert isinstance(error.value.os_error, ConnectionResetError)


async def test_clients_with_certificates(start_frontend: StartFrontend, tmp_path: Path) -> None:
    for name in ("server", "friend", "stranger"):
        make_certificate(tmp_path, name)
    ca = tmp_path / "clients.pem"
    ca.write_bytes((tmp_path / "friend.crt").read_bytes())
    frontend = await start_frontend(
        config=with_server(
            tls_certificate=str(tmp_path / "server.crt"), tls_key=str(tmp_path / "server.key"), tls_client_ca=str(ca)
        ),
        tcp=True,
    )

    async def statuses(names: Sequence[str | None]) -> list[int | None]:
        found: list[int | None] = []
        for name in names:
            context = trusting(tmp_path / "server.crt")
            if name is not None:
                context.load_cert_chain(tmp_path / f"{name}.crt", tmp_path / f"{name}.key")
            try:
                found.append(await fetch(frontend, context))
            except aiohttp.ClientError:
                found.append(None)
        return found

    assert await statuses([None, "friend", "stranger"]) == [None, 200, None]
    ca.write_bytes((tmp_path / "stranger.crt").read_bytes())
    await reload(frontend)
    assert await statuses([None, "friend", "stranger"]) == [None, None, 200]

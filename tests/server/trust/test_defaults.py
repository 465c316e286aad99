"""A server with default settings: it serves this machine only, and no web page."""

from __future__ import annotations

import asyncio
import errno
import socket
from pathlib import Path

import orjson
import pytest

from tests.server.live import LiveServer
from tests.server.trust.client import Client, chat
from tests.support.tiny import TinyModel
from twofold.cli.main import main
from twofold.server.config import ServerConfig
from twofold.server.models.named_models import NamedModel
from twofold.server.server import _bind_error


def test_the_server_listens_on_loopback_only(server: LiveServer) -> None:
    port = int(server.url.rpartition(":")[2])
    (line,) = [
        line.split()
        for line in Path("/proc/net/tcp").read_text().splitlines()
        if f":{port:04X} 00000000:0000 0A" in line
    ]
    assert line[1] == f"0100007F:{port:04X}"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_other_addresses_need_a_key(
    tiny: TinyModel, tmp_path: Path, host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["serve", str(tiny.path), "--port", "0", "--host", host, "--data-folder", str(tmp_path)]
    assert main(arguments) == 2
    assert "API key" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("localhost:1234", 200),
        ("[::1]", 200),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example:80", 403),
        ("evil.example@localhost", 403),
        ("", 403),
    ],
)
def test_only_names_of_this_machine_are_accepted(client: Client, host: str, status: int) -> None:
    for path in ("/v1/models", "/health", "/metrics"):
        assert asyncio.run(client.get(path, Host=host)).status == status


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost.evil.example", "http://127.0.0.1:1"]
)
def test_pages_of_other_origins_are_refused(client: Client, origin: str) -> None:
    async def ask() -> list[dict[str, str]]:
        asked = await client.ask("POST", "/v1/chat/completions", chat(max_tokens=1), Origin=origin)
        first = await client.ask("OPTIONS", "/v1/chat/completions", Origin=origin, Access_Control_Request_Method="POST")
        assert asked.status == 403
        assert first.status in {403, 405}
        return [dict(asked.headers), dict(first.headers)]

    for headers in asyncio.run(ask()):
        assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize("path", ["/v1/models", "/api/tags", "/v1/messages"])
def test_requests_of_other_sites_are_refused_in_the_format_of_the_path(client: Client, path: str) -> None:
    refused = asyncio.run(client.get(path, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors"))
    assert refused.status == 403
    error = orjson.loads(refused.body)["error"]
    assert "other sites" in (error if isinstance(error, str) else error["message"])


def test_replies_have_security_headers(client: Client) -> None:
    headers = asyncio.run(client.get("/health")).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "server" not in headers


def test_workers_open_no_port(server: LiveServer) -> None:
    """They are spoken to over an inherited socket that has no address."""
    inodes = {line.split()[9] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]}
    for pid in server.worker_pids():
        links = [link.readlink().name for link in Path(f"/proc/{pid}/fd").iterdir()]
        held = {name.removeprefix("socket:[").removesuffix("]") for name in links if name.startswith("socket:")}
        assert held
        assert not held & inodes


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--port", "99999"), "--port must be a number from 0 to 65535, not 99999."),
        (("--port", "-1"), "--port must be a number from 0 to 65535, not -1."),
        (("--host", "no-such-host.invalid", "--api-key", "k" * 20), "The host 'no-such-host.invalid' is unknown."),
        (("--host", "192.0.2.1", "--api-key", "k" * 20), "192.0.2.1 is not an address of this machine."),
    ],
)
def test_an_address_that_cannot_be_bound_is_a_usage_error(
    tiny: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], told: str
) -> None:
    port = () if "--port" in arguments else ("--port", "0")
    command = ["serve", str(tiny.path), *port, *arguments, "--data-folder", str(tmp_path / "data")]
    assert main(command) == 2
    assert told in capsys.readouterr().err


def test_a_port_in_use_is_an_error(tiny: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        arguments = ["serve", str(tiny.path), "--port", port, "--data-folder", str(tmp_path / "data")]
        assert main(arguments) == 2
    assert f"Port {port} is in use." in capsys.readouterr().err


def test_an_address_that_needs_a_privilege(tiny: TinyModel, tmp_path: Path) -> None:
    config = ServerConfig(offers=(NamedModel(("tiny",), str(tiny.path)),), data=tmp_path, port=80)
    error = _bind_error(config, PermissionError(errno.EACCES, "Permission denied"))
    assert "Port 80 needs a privilege" in str(error)
    assert "1024" in str(error.hint)

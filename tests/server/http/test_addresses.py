"""Listening addresses: values of `--host`, where the server can be reached, and the URL it logs."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

import httpx
import pytest
from pydantic import ValidationError
from structlog.testing import capture_logs
from typer.testing import CliRunner

from server.cli import app
from server.configuration.addresses import ListenAddress, listen_address, open_address
from server.settings import Settings
from tests.support.needs import need_ipv6
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer

Start = Callable[..., LiveServer]


@pytest.mark.parametrize(
    ("given", "host"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "0.0.0.0"),
        ("::1", "::1"),
        ("[::1]", "::1"),
        ("::", "::"),
        ("[::]", "::"),
        ("0:0:0:0:0:0:0:0", "::"),
        ("[2001:DB8::0001]", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        (" localhost ", "localhost"),
        ("asr_1.example.org", "asr_1.example.org"),
    ],
)
def test_addresses_are_accepted_with_and_without_brackets(given: str, host: str) -> None:
    assert Settings(host=given).host == host


@pytest.mark.parametrize(
    "given", ["127.0.0.1:8080", "[::1]:8080", "http://localhost", "[::1", "::1]", "[localhost]", "::g", " ", "a b", "*"]
)
def test_an_invalid_address_is_refused_with_the_valid_ones(given: str) -> None:
    with pytest.raises(ValidationError, match="is not an address to listen on: give a host"):
        Settings(host=given)


def test_commands_refuse_a_bad_host_in_one_line() -> None:
    for command in ("serve", "doctor"):
        ran = CliRunner().invoke(app, [command, "--host", "[::1]:8080"])
        assert ran.exit_code == 2
        assert ran.output.startswith("tutti: --host (TUTTI_HOST): is not an address to listen on")
        assert len(ran.output.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8080"),
        ("localhost", "http://localhost:8080"),
        ("::1", "http://[::1]:8080"),
        ("2001:db8::1", "http://[2001:db8::1]:8080"),
        ("fe80::1%eth0", "http://[fe80::1%25eth0]:8080"),
        ("0.0.0.0", "http://127.0.0.1:8080"),
        ("::", "http://127.0.0.1:8080"),
    ],
)
def test_an_address_is_shown_as_one_that_can_be_opened(host: str, url: str) -> None:
    assert open_address(host, 8080) == url
    assert open_address(host, 8080, "ws") == url.replace("http", "ws", 1)


@pytest.mark.parametrize(
    ("host", "reached"),
    [
        ("127.0.0.1", ["127.0.0.1"]),
        ("0.0.0.0", ["127.0.0.1"]),
        ("::1", ["[::1]"]),
        ("[::1]", ["[::1]"]),
        ("::", ["127.0.0.1", "[::1]"]),
        ("[::]", ["127.0.0.1", "[::1]"]),
    ],
)
def test_a_server_is_reached_at_the_url_that_it_logs(live_server: Start, host: str, reached: list[str]) -> None:
    if ":" in host:
        need_ipv6()
    with capture_logs() as log:
        server = live_server(host=host, vosk_port=0)
    vosk, line = [entry for entry in log if entry["event"] == "listening"]
    assert httpx.get(f"{line['url']}/healthz", timeout=WAIT_S).status_code == 200
    assert vosk["url"] == open_address(server.settings.host, server.vosk_port, "ws") + "/"
    for entry in (line, vosk):
        assert entry.get("interfaces") == ("all" if host.strip("[]") in ("0.0.0.0", "::") else None)
    for address in reached:
        for port in (urlsplit(line["url"]).port, server.vosk_port):
            answer = httpx.get(f"http://{address}:{port}/healthz", timeout=WAIT_S)
            assert answer.status_code == (404 if port == server.vosk_port else 200)


@pytest.mark.parametrize(
    ("text", "host", "port", "parameters"),
    [
        ("10300", "127.0.0.1", 10_300, ()),
        ("0.0.0.0:0", "0.0.0.0", 0, ()),
        ("[::1]:10300?redact=pci&redact=ssn", "::1", 10_300, (("redact", "pci"), ("redact", "ssn"))),
        ("home.local:1?keyterms=/a%20b", "home.local", 1, (("keyterms", "/a b"),)),
    ],
)
def test_the_address_of_a_port_of_its_own(
    text: str, host: str, port: int, parameters: tuple[tuple[str, str], ...]
) -> None:
    assert listen_address(text) == ListenAddress(host, port, parameters)


@pytest.mark.parametrize("text", ["", "x", "65536", "-1", "host:", ":1", "1?a", "a b:1", "9" * 5_000])
def test_an_address_that_is_not_valid_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be PORT|is not an address|NAME=VALUE"):
        listen_address(text)

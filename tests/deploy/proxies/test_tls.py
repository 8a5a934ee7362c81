"""TLS variants of the proxy files, with a certificate created by the test."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from urllib.parse import urlencode

import httpx
import pytest
from websockets.sync.client import connect

from tests.support.deployment.certificates import self_signed
from tests.support.deployment.edge import Tls, proxied
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import RAW, Client, LiveServer, transcript
from tests.support.servers.recognizers.spelling import spell
from tutti_asr_lab.trials.proxies import PROXIES, Running

Start = Callable[..., LiveServer]
every_proxy = pytest.mark.parametrize("name", list(PROXIES))


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    """Create a self-signed certificate for 127.0.0.1."""
    folder = self_signed(tmp_path_factory.mktemp("tls"))
    return Tls(folder / "both.pem", folder)


def port(name: str, proxy: Running) -> int:
    """Return the TLS port: Envoy's only listener, or the second one of other proxies."""
    return proxy.ports.audio if name == "envoy" else proxy.ports.tls


@every_proxy
def test_a_stream_passes_over_tls(live_server: Start, name: str, tls: Tls) -> None:
    trusting = ssl.create_default_context(cafile=str(tls.folder / "tls.crt"))
    with proxied(name, live_server(), tls=tls) as proxy:
        url = f"wss://127.0.0.1:{port(name, proxy)}/v1/listen?{urlencode(RAW)}"
        with Client(connect(url, ssl=trusting, open_timeout=WAIT_S, close_timeout=WAIT_S, proxy=None)) as client:
            assert client.socket.socket.version() == "TLSv1.3"
            client.send(spell("in confidence"))
            assert transcript(client.finish()) == "in confidence"


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
@every_proxy
def test_old_tls_and_http_2_are_rejected(live_server: Start, name: str, tls: Tls) -> None:
    """Over HTTP/2, streams on one socket would block each other."""
    with proxied(name, live_server(), tls=tls) as proxy:
        address = ("127.0.0.1", port(name, proxy))
        offering = ssl.create_default_context(cafile=str(tls.folder / "tls.crt"))
        offering.set_alpn_protocols(["h2", "http/1.1"])
        assert _alpn(address, offering) != "h2"
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.set_ciphers("ALL:@SECLEVEL=0")
        old.minimum_version = ssl.TLSVersion.TLSv1
        old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            _alpn(address, old)


def _alpn(address: tuple[str, int], context: ssl.SSLContext) -> str | None:
    with (
        socket.create_connection(address, timeout=WAIT_S) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped,
    ):
        return wrapped.selected_alpn_protocol()


@pytest.mark.parametrize("name", ["haproxy", "nginx"])
def test_plain_http_is_redirected_to_tls(live_server: Start, name: str, tls: Tls) -> None:
    with proxied(name, live_server(), tls=tls) as proxy:
        answer = httpx.get(f"http://127.0.0.1:{proxy.ports.audio}/v1/status", timeout=WAIT_S)
        assert answer.status_code == 308
        assert answer.headers["location"].startswith("https://127.0.0.1")


def test_haproxy_sends_strict_transport_security(live_server: Start, tls: Tls) -> None:
    trusting = ssl.create_default_context(cafile=str(tls.folder / "tls.crt"))
    with proxied("haproxy", live_server(), tls=tls) as proxy:
        answer = httpx.get(f"https://127.0.0.1:{proxy.ports.tls}/v1/status", verify=trusting, timeout=WAIT_S)
        assert answer.status_code == 200
        assert "max-age" in answer.headers["strict-transport-security"]

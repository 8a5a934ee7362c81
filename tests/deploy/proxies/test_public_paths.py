"""Which paths the shipped proxies and the chart's routes make public: those of the application but its operators'."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.audio.speech import ROOT
from tests.support.deployment.chart import Manifest, of_kind, rendered
from tests.support.deployment.edge import proxied
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer
from tutti_asr_lab.trials.proxies import PROXIES, Running

Start = Callable[..., LiveServer]
every_proxy = pytest.mark.parametrize("name", list(PROXIES))
OF_OPERATORS = re.compile(r"/(?:metrics|healthz|readyz|admin/.+|v2|v2/(?:health|models)/.+)")
"""Every other path of the application is public: a new route is routed, or added here."""
HIDDEN = ("/metrics", "/admin/drain", "/readyz", "/healthz", "/v2", "/v2/health/ready")


def spellings(path: str) -> list[str]:
    """Return request targets that some server or proxy could take for a path."""
    first, rest = path[1], path[2:]
    return [
        path,
        f"{path}/",
        f"{path}?x=1",
        f"/%{ord(first):02x}{rest}",
        f"/%{ord(first):02X}{rest}",
        f"/%25{ord(first):02x}{rest}",  # encoded twice
        "/" + "".join(f"%{ord(each):02x}" for each in path[1:]),
        f"/%2f{path[1:]}",
        f"%2f{path[1:]}",
        f"/{path}",
        f"//{path}",
        f"/.{path}",
        f"/%2e{path}",
        f"/v1/..{path}",
        f"/v1/%2e%2e{path}",
        f"/v1/..%2f{path[1:]}",
        f"/web/..{path}",
        f"/docs/../..{path}",
        f"/v1/.%2e/..{path}",
        f"/\\..{path}",
        f"/v1\\..\\{path[1:]}",
        f"{path};v1",
        f"/;x{path}",
        f"/v1;/..{path}",
        f"{path}%00",
        f"{path}%20",
        f"{path}%0a",
        f"{path}%23",
        f"{path}#/v1/listen",
        path.upper(),
        f"/{first.upper()}{rest}",
        f"http://tutti.example{path}",
        f"http://tutti.example/{path}",
        f"http://tutti.example/%{ord(first):02x}{rest}",
        f"https://tutti.example{path}",
        f"http:{path}",
    ]


def app_paths(routes: Iterable[Any]) -> Iterator[str]:
    """Return the paths of the application's routes, with a name for each parameter."""
    for route in routes:
        if hasattr(route, "original_router"):  # FastAPI keeps included routers as such
            yield from app_paths(route.original_router.routes)
        else:
            yield re.sub(r"\{\w+\}", "x", route.path)


@pytest.fixture(scope="module")
def paths() -> dict[bool, set[str]]:
    """Return the application's paths: under True the public ones, under False those of operators."""
    found = set(app_paths(LiveServer().app.routes))
    hidden = {path for path in found if OF_OPERATORS.fullmatch(path)}
    return {True: found - hidden, False: hidden}


def answer(address: tuple[str, int], target: str, method: str = "GET") -> tuple[int, bytes]:
    """Return the status and the body of the answer to a request with this target, as it is written."""
    with socket.create_connection(address, timeout=WAIT_S) as connection:
        connection.sendall(f"{method} {target} HTTP/1.1\r\nHost: tutti.example\r\nConnection: close\r\n\r\n".encode())
        received = b"".join(iter(lambda: connection.recv(65_536), b""))
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]), re.sub(rb'(?<="request_id":")[^"]*', b"", body)


def at(proxy: Running) -> tuple[str, int]:
    return "127.0.0.1", proxy.ports.audio


def direct(server: LiveServer) -> tuple[str, int]:
    host, _, port = server.host.partition(":")
    return host, int(port)


def test_paths_of_both_kinds_are_found(paths: dict[bool, set[str]]) -> None:
    assert {"/", "/v1/listen", "/v2/listen", "/vosk", "/.well-known/jwks.json", "/docs", "/web/app.js"} <= paths[True]
    assert {"/metrics", "/admin/drain", "/admin/models/x/load", "/readyz", "/v2/models/x/ready"} <= paths[False]


@every_proxy
def test_every_public_path_is_answered_by_a_replica_and_no_other_path(
    live_server: Start, name: str, paths: dict[bool, set[str]]
) -> None:
    server = live_server()
    with proxied(name, server) as proxy:
        for path in sorted(paths[True]):
            assert answer(at(proxy), path) == answer(direct(server), path), path
        for path in sorted(paths[False]):
            status, body = answer(at(proxy), path)
            assert (status, json.loads(body)["err_code"]) == (404, "NOT_FOUND"), path
            assert body != answer(direct(server), path)[1], path


@every_proxy
def test_no_spelling_of_an_operators_path_is_answered(live_server: Start, name: str) -> None:
    server = live_server()
    prompt = (("delayed_close_timeout: 0.1s", "delayed_close_timeout: 0s"),) if name == "envoy" else ()
    with proxied(name, server, changes=prompt) as proxy:
        secret = {path: answer(direct(server), path) for path in HIDDEN if not path.startswith(("/metrics", "/admin"))}
        for path in HIDDEN:
            method = "POST" if path.startswith("/admin") else "GET"
            for target in spellings(path):
                with contextlib.suppress(IndexError, ConnectionError):  # closed without an answer
                    status, body = answer(at(proxy), target, method)
                    assert status >= 400, target
                    assert b"tutti_" not in body, target
                    assert (status, body) != secret.get(path), target
        assert not server.replica.sessions.draining
        assert answer(at(proxy), "/v1/status")[0] == 200


@every_proxy
def test_http_2_without_tls_is_refused(live_server: Start, name: str) -> None:
    """Several streams of a client would share a socket."""
    with proxied(name, live_server()) as proxy, socket.create_connection(at(proxy), timeout=WAIT_S) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000"))
        with contextlib.suppress(ConnectionError):
            first = connection.recv(65_536)
            assert first == b"" or first.startswith(b"HTTP/1.1 "), first
        upgrade = "/v1/status HTTP/1.1\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nX-Rest:"
        assert answer(at(proxy), upgrade)[0] != 101


def acls(path: str) -> list[str]:
    """Return the lines of a HAProxy configuration that choose the public paths."""
    lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
    return [
        line for line in lines if line.startswith(("    acl public", "    http-request return", "    option disable"))
    ]


def test_haproxy_of_the_ray_fleet_has_the_same_rules() -> None:
    assert acls("deploy/ray/haproxy.cfg") == [line.partition("    #")[0] for line in acls("deploy/haproxy/haproxy.cfg")]
    assert len(acls("deploy/ray/haproxy.cfg")) == 4


def route_matches(example: str) -> list[tuple[str, bool]]:
    """Return the paths of an example's HTTPRoute or Ingress, and whether each is a prefix."""
    manifests = rendered(example)
    if "HTTPRoute" in {each["kind"] for each in manifests}:
        [rule] = of_kind(manifests, "HTTPRoute")["spec"]["rules"]
        found: list[Manifest] = [each["path"] for each in rule["matches"]]
        return [(each["value"], each["type"] == "PathPrefix") for each in found]
    [rule] = of_kind(manifests, "Ingress")["spec"]["rules"]
    return [(each["path"], each["pathType"] == "Prefix") for each in rule["http"]["paths"]]


@pytest.mark.parametrize("example", ["envoy-gateway", "traefik", "haproxy-ingress"])
def test_the_chart_routes_every_public_path_and_no_other(example: str, paths: dict[bool, set[str]]) -> None:
    matches = route_matches(example)

    def routed(path: str) -> bool:
        """By path elements, as Ingress and HTTPRoute define prefixes."""
        return any(path == value or (prefix and path.startswith(f"{value}/")) for value, prefix in matches)

    assert {path for path in paths[True] if not routed(path)} == set()
    assert {path for path in paths[False] if routed(path)} == set()
    assert all(any(path == value or path.startswith(f"{value}/") for path in paths[True]) for value, _ in matches)


def test_the_shipped_manifests_have_no_routes_of_their_own() -> None:
    assert not re.search(r"kind: (?:HTTPRoute|Ingress)", Path(ROOT / "deploy/kubernetes/tutti.yaml").read_text())

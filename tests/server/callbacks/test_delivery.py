"""One delivery: signature, tries, redirects, and connections to the address that was checked."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from server.callbacks import delivery
from server.callbacks.delivery import CallbackDelivery, CallbackOutcome, signing_key
from server.callbacks.folder import CallbackEntry
from server.callbacks.hosts import AllowedHosts
from server.errors import SettingsError
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.receiver import Answer, Received, receiver

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()
LOOPBACK = ["127.0.0.0/8", "results.example.org"]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three tries within a tenth of a second."""
    monkeypatch.setattr(delivery, "PAUSES_S", (0.01, 0.05))


def delivered(url: str, hosts: list[str] = LOOPBACK, *, method: str = "POST", key: bytes | None = None) -> Counter[str]:
    """Deliver a result to this URL; return the outcomes."""
    outcomes: Counter[str] = Counter()

    async def deliver() -> None:
        sender = CallbackDelivery(AllowedHosts(hosts), key, lambda outcome: outcomes.update([outcome]))
        await sender.deliver(CallbackEntry("call-000001", "call", url, method, "k3y"), b'{"text":1}')
        await sender.close()

    asyncio.run(deliver())
    return outcomes


def answers(*statuses: int) -> Iterator[Answer]:
    """Yield these answers, then 200 for ever."""
    for status in statuses:
        yield status, {}
    while True:
        yield 200, {}


def test_a_result_is_posted_once_with_a_signature_that_its_receiver_can_check() -> None:
    with receiver() as running:
        url = f"http://user:pass@127.0.0.1:{running.port}/results?a=b#c"
        assert delivered(url, key=signing_key(SECRET), method="PUT") == {CallbackOutcome.DELIVERED: 1}
        received = running.next()
        assert running.empty
    assert (received.method, received.path, received.body) == ("PUT", "/results?a=b", b'{"text":1}')
    headers = received.headers
    assert headers["content-type"] == "application/json"
    assert headers["authorization"] == "Basic " + base64.b64encode(b"user:pass").decode()
    assert (headers["webhook-id"], headers["dg-token"]) == ("call-000001", "k3y")
    signed = f"call-000001.{headers['webhook-timestamp']}.".encode() + received.body
    digest = hmac.new(b"k" * 32, signed, hashlib.sha256).digest()
    assert headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"


def test_a_server_without_a_secret_sends_no_signature() -> None:
    with receiver() as running:
        delivered(running.url)
        assert not {"webhook-signature", "webhook-timestamp"} & running.next().headers.keys()


@pytest.mark.parametrize(
    ("statuses", "outcomes"),
    [
        ((500,), {CallbackOutcome.RETRIED: 1, CallbackOutcome.DELIVERED: 1}),
        ((503, 404), {CallbackOutcome.RETRIED: 2, CallbackOutcome.DELIVERED: 1}),
        ((500, 500, 500), {CallbackOutcome.RETRIED: 2, CallbackOutcome.FAILED: 1}),
        ((302, 204), {CallbackOutcome.RETRIED: 1, CallbackOutcome.DELIVERED: 1}),
    ],
)
def test_a_result_is_tried_three_times(statuses: tuple[int, ...], outcomes: dict[CallbackOutcome, int]) -> None:
    given = answers(*statuses)
    with receiver(lambda _: next(given)) as running:
        assert delivered(running.url) == outcomes
        ids = {running.next().headers["webhook-id"] for _ in range(sum(outcomes.values()))}
        assert ids == {"call-000001"}, "the receiver can tell a repeated result"
        assert running.empty


def test_a_receiver_that_is_down_is_tried_three_times() -> None:
    with receiver() as running:
        pass
    assert delivered(running.url) == {CallbackOutcome.RETRIED: 2, CallbackOutcome.FAILED: 1}


def redirecting(status: int, target: str) -> Answer:
    return status, {"location": target}


def test_a_redirect_that_keeps_the_body_is_followed() -> None:
    with receiver() as end, receiver(lambda _: redirecting(308, end.url)) as first:
        assert delivered(first.url) == {CallbackOutcome.DELIVERED: 1}
        assert end.next().body == b'{"text":1}'


@pytest.mark.parametrize("target", ["http://10.0.0.1/", "http://evil.example/", "file:///etc/passwd", "//10.0.0.1/"])
def test_a_redirect_to_what_is_not_allowed_is_refused_at_once(target: str) -> None:
    with receiver(lambda _: redirecting(307, target)) as running:
        assert delivered(running.url) == {CallbackOutcome.REFUSED: 1}


def test_a_redirect_into_a_private_network_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a name that is allowed and has a public address when it is first resolved, then a private one."""
    with receiver(lambda got: redirecting(307, f"http://results.example.org:{first.port}/x")) as first:
        named(monkeypatch, "192.168.1.1")
        assert delivered(first.url) == {CallbackOutcome.REFUSED: 1}


def test_redirects_without_end_are_a_failed_try() -> None:
    def around(received: Received) -> Answer:
        return redirecting(307, received.path)

    with receiver(around) as running:
        assert delivered(running.url) == {CallbackOutcome.RETRIED: 2, CallbackOutcome.FAILED: 1}


def named(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[str]:
    """Let results.example.org have these addresses, one after the other; return those that were asked for."""
    asked: list[str] = []
    resolve = AllowedHosts.resolve

    async def resolved(self: AllowedHosts, url: object) -> list[str]:
        loop = asyncio.get_running_loop()

        async def getaddrinfo(host: str, port: int, **_: object) -> list[object]:
            asked.append(host)
            address = host if host.startswith("127.") else addresses[min(len(asked), len(addresses)) - 1]
            return [(2, 1, 6, "", (address, port))]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "getaddrinfo", getaddrinfo)
            return await resolve(self, url)  # type: ignore[arg-type]

    monkeypatch.setattr(AllowedHosts, "resolve", resolved)
    return asked


def test_the_connection_is_made_to_the_address_that_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that has another address at the second question gains nothing: there is none."""
    asked = named(monkeypatch, "127.0.0.1", "169.254.169.254")
    with receiver() as running:
        assert delivered(f"http://results.example.org:{running.port}/") == {CallbackOutcome.DELIVERED: 1}
        assert running.next().headers["host"] == f"results.example.org:{running.port}"
    assert asked == ["results.example.org"]


def test_an_answer_that_never_comes_is_a_failed_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "TRY_S", 0.1)
    ended = threading.Event()

    def hang(_: Received) -> Answer:
        ended.wait(WAIT_S)
        return 200, {}

    with receiver(hang) as running:
        assert delivered(running.url) == {CallbackOutcome.RETRIED: 2, CallbackOutcome.FAILED: 1}
        ended.set()


@pytest.mark.parametrize("secret", ["short", "whsec_", "whsec_" + "A" * 12, "whsec_" + "*" * 44, "A" * 200])
def test_a_bad_secret_is_refused(secret: str) -> None:
    with pytest.raises(SettingsError, match="must be whsec_ and 24 to 64 bytes in base64"):
        signing_key(secret)

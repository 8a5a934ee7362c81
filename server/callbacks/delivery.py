"""Delivery of one result: three tries, each to an address that is checked, with the signature of Standard Webhooks.

Source of the headers: standardwebhooks.com; `dg-token` is Deepgram's, the id of the key that asked.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Callable
from enum import StrEnum

import httpx
import structlog

from server.callbacks.folder import CallbackEntry
from server.callbacks.hosts import AllowedHosts, Forbidden
from server.errors import SettingsError

PAUSES_S = (2.0, 20.0)  # before the second and the third try
TRY_S = 15.0  # for one try, redirects included
MAX_REDIRECTS = 3
REDIRECTS = (307, 308)  # which keep the method and the body
CONNECTIONS = 32
SECRET_PREFIX = "whsec_"  # noqa: S105 - of Standard Webhooks
SECRET_BYTES = range(24, 65)

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.callbacks")


class CallbackOutcome(StrEnum):
    """What became of a result; the label of a metric."""

    DELIVERED = "delivered"
    RETRIED = "retried"  # a try that failed before the last
    FAILED = "failed"  # three tries failed, or it could not be stored
    REFUSED = "refused"  # its URL, or one that it redirects to, is not allowed


class FailedTry(Exception):
    """A try that failed; the message says why."""


def signing_key(secret: str) -> bytes:
    """Return the key of a secret in the form of Standard Webhooks: `whsec_` and base64. Raises: SettingsError."""
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) not in SECRET_BYTES:
        least, most = SECRET_BYTES[0], SECRET_BYTES[-1]
        raise SettingsError(f"must be {SECRET_PREFIX} and {least} to {most} bytes in base64: openssl rand -base64 32")
    return key


def signature(key: bytes, entry_id: str, timestamp: int, body: bytes) -> str:
    """Return the value of `webhook-signature`."""
    digest = hmac.digest(key, f"{entry_id}.{timestamp}.".encode() + body, hashlib.sha256)
    return f"v1,{base64.b64encode(digest).decode()}"


class CallbackDelivery:
    """Posts results. Proxies of the environment are not used: they would connect to what was not checked."""

    def __init__(self, hosts: AllowedHosts, key: bytes | None, count: Callable[[CallbackOutcome], None]) -> None:
        """`count` receives each outcome."""
        self._hosts = hosts
        self._key = key
        self._count = count
        self._client = httpx.AsyncClient(
            trust_env=False, timeout=TRY_S, limits=httpx.Limits(max_connections=CONNECTIONS)
        )

    async def deliver(self, entry: CallbackEntry, body: bytes) -> None:
        """Post a result; after the last try it is given up, and the log says so."""
        for number, pause_s in enumerate((0.0, *PAUSES_S)):
            await asyncio.sleep(pause_s)
            try:
                async with asyncio.timeout(TRY_S):
                    await self._try(entry, body, number)
            except Forbidden as error:
                self._end(CallbackOutcome.REFUSED, entry, str(error))
                return
            except (FailedTry, httpx.HTTPError, OSError) as error:
                why = str(error) if isinstance(error, FailedTry) else type(error).__name__
                if number == len(PAUSES_S):
                    self._end(CallbackOutcome.FAILED, entry, why)
                    return
                self._count(CallbackOutcome.RETRIED)
            else:
                self._count(CallbackOutcome.DELIVERED)
                return

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    def _end(self, outcome: CallbackOutcome, entry: CallbackEntry, why: str) -> None:
        self._count(outcome)
        _log.warning("callback given up", outcome=outcome.value, request_id=entry.call, reason=why)

    async def _try(self, entry: CallbackEntry, body: bytes, number: int) -> None:
        """Post once. Raises: Forbidden, FailedTry, httpx.HTTPError, OSError."""
        url = self._hosts.check(entry.url)
        headers = {"content-type": "application/json", "webhook-id": entry.id, "dg-token": entry.key_id}
        if self._key is not None:
            timestamp = int(time.time())
            headers |= {
                "webhook-timestamp": f"{timestamp}",
                "webhook-signature": signature(self._key, entry.id, timestamp, body),
            }
        for _ in range(MAX_REDIRECTS + 1):
            answer = await self._send(url, entry.method, headers, body, number)
            if answer.is_success:
                return
            if answer.status_code not in REDIRECTS or "location" not in answer.headers:
                raise FailedTry(f"HTTP {answer.status_code}")
            url = self._hosts.check(str(url.join(answer.headers["location"])))
        raise FailedTry(f"more than {MAX_REDIRECTS} redirects")

    async def _send(
        self, url: httpx.URL, method: str, headers: dict[str, str], body: bytes, number: int
    ) -> httpx.Response:
        """Send a request to a checked address; the answer's body is not read."""
        addresses = await self._hosts.resolve(url)
        host = url.raw_host.decode("ascii")
        port = "" if url.port is None else f":{url.port}"
        basic = (url.username, url.password) if url.username or url.password else None
        request = self._client.build_request(
            method,
            url.copy_with(host=addresses[number % len(addresses)], username=None, password=None, fragment=None),
            headers={**headers, "host": f"[{host}]{port}" if ":" in host else f"{host}{port}"},
            content=body,
            extensions={"sni_hostname": host},  # the certificate is that of the name
        )
        answer = await self._client.send(request, auth=basic, stream=True, follow_redirects=False)
        await answer.aclose()
        return answer

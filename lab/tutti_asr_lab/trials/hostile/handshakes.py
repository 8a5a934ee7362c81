"""Attacks before a stream is open: broken, slow, huge or unauthorized handshakes, requests and uploads."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import string

from tutti_asr_lab.trials.hostile.raw_connection import Line, Target

LISTEN = "/v1/listen?encoding=linear16&sample_rate=16000"
SOCKETS = ("/v1/listen", "/vosk", "/v1/realtime?intent=transcription", "/v1/twilio?reply=true")
NAMES = (
    "encoding", "sample_rate", "channels", "multichannel", "endpointing", "utterance_end_ms", "keyterm", "keywords",
    "model", "callback", "latency_budget_ms", "interim_interval_ms", "resumable", "tag", "language", "token", "key",
)  # fmt: skip
SLOW_S = 0.05  # between the bytes of a slow client
SLOW_BYTES = 60


async def garbage(target: Target, rng: random.Random) -> None:
    """Send random bytes instead of a request."""
    async with target.dial() as line:
        await line.send(rng.randbytes(rng.randint(1, 4_000)))
        await _leave(line, rng)


async def truncated(target: Target, rng: random.Random) -> None:
    """Send an incomplete handshake."""
    head = target.head(LISTEN)
    async with target.dial() as line:
        await line.send(head[: rng.randrange(len(head) - 1)])
        await _leave(line, rng)


async def slow_loris(target: Target, rng: random.Random) -> None:
    """Send an endless head byte by byte."""
    head = target.head(LISTEN, {"X-Slow": "x" * 200})
    async with target.dial() as line:
        for byte in head[: rng.randint(2, SLOW_BYTES)]:
            if not await line.send(bytes([byte]), messages=0):
                break
            await asyncio.sleep(SLOW_S)
        await line.send(b"", messages=1)
        await _leave(line, rng)


async def giant_head(target: Target, rng: random.Random) -> None:
    """Send too many or too long headers, or too long a query."""
    size = rng.choice((1_000, 9_000, 70_000, 300_000))
    many = "".join(f"X-{number}: y\r\n" for number in range(size // 10))
    heads = (
        target.head(LISTEN, {"X-Long": "y" * size}),
        target.head(f"{LISTEN}&keyterm={'a' * size}"),
        target.head(LISTEN)[:-2] + many.encode() + b"\r\n",
        target.head("/" + "a" * size),
    )
    async with target.dial() as line:
        await line.send(rng.choice(heads))
        await _leave(line, rng)


async def broken_handshake(target: Target, rng: random.Random) -> None:
    """Send a handshake with one error."""
    wrong: tuple[dict[str, str], ...] = (
        {"Sec-WebSocket-Version": rng.choice(("", "12", "x"))},
        {"Sec-WebSocket-Key": rng.choice(("", "short", "=" * 24))},
        {"Upgrade": rng.choice(("", "h2c", "websocket, websocket"))},
        {"Connection": rng.choice(("", "close", "Upgrade, Upgrade"))},
        {"Host": ""},
        {"Content-Length": str(rng.choice((-1, 0, 5, 2**40)))},
        {"Transfer-Encoding": rng.choice(("chunked", "gzip"))},
        {"Sec-WebSocket-Extensions": "permessage-deflate; client_max_window_bits=99"},
        {"Sec-WebSocket-Protocol": ", ,token" + ",x" * 50},
        {"Expect": "100-continue"},
    )
    head = target.head(LISTEN, rng.choice(wrong), method=rng.choice(("GET", "GET", "POST", "HEAD", "BREW")))
    if rng.random() < 0.2:
        head = head.replace(b"HTTP/1.1", rng.choice((b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9.9", b"")))
    async with target.dial() as line:
        if await line.send(head):
            await line.answer()
        await _leave(line, rng)


async def bad_credentials(target: Target, rng: random.Random) -> None:
    """Send no key, a wrong one, or an unsigned token, in any form."""
    claims = {"aud": "tutti", "sub": "x" * rng.randint(0, 50), "iat": 0, "exp": rng.choice((0, 2**40, "x", None))}
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in _jwt(claims, rng)]
    secret = rng.choice(
        (".".join(parts), "".join(rng.choices(string.printable, k=30)), "", "\x00", "ä" * 40, "..", "a.b.c")
    )
    secret = "".join(c for c in secret if c not in "\r\n")
    scheme = rng.choice(("Token", "bearer", "Basic", ""))
    forms = (
        {"Authorization": f"{scheme} {secret}"},
        {"Authorization": "", "Sec-WebSocket-Protocol": f"{scheme}, {secret}"},
    )
    async with target.dial() as line:
        if await line.send(target.head(LISTEN, rng.choice(forms), key=None)):
            await line.answer()


async def bad_origin(target: Target, rng: random.Random) -> None:
    """Send a disallowed or invalid origin."""
    origin = rng.choice(("https://evil.example", "null", "http://", "\x7f", "http://[", "https://a:99999999"))
    async with target.dial() as line:
        if await line.send(target.head(LISTEN, {"Origin": origin})):
            await line.answer()


async def bad_query(target: Target, rng: random.Random) -> None:
    """Send random parameters, most of them invalid."""
    pairs = [f"{rng.choice(NAMES)}={_value(rng)}" for _ in range(rng.randint(1, 12))]
    path = rng.choice(SOCKETS)
    async with target.dial() as line:
        query = rng.choice("?&") + "&".join(pairs)
        if await line.send(target.head(path + query)) and await line.answer() == 101:
            await line.send(rng.randbytes(50))
        await _leave(line, rng)


async def half_open(target: Target, rng: random.Random) -> None:
    """Open a connection without sending a byte."""
    async with target.dial() as line:
        await line.send(b"")
        await asyncio.sleep(rng.random())
        await _leave(line, rng)


async def bad_upload(target: Target, rng: random.Random) -> None:
    """Upload something that is not a recording, or whose body does not match its head."""
    flipped = bytearray(target.file[: rng.randint(1, len(target.file))])
    for _ in range(rng.randint(0, 20)):
        flipped[rng.randrange(len(flipped))] = rng.randrange(256)
    body = rng.choice((b"", rng.randbytes(rng.randint(1, 20_000)), bytes(flipped), target.file[:100]))
    length = len(body) + rng.choice((0, 0, 0, 100, -len(body) // 2))
    path = rng.choice(("/v1/listen", "/v1/listen?encoding=opus&sample_rate=48000", "/v1/audio/transcriptions"))
    kind = rng.choice(("audio/wav", "application/json", "multipart/form-data; boundary=x", "x"))
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Token {target.key}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {length}\r\n\r\n"
    )
    if rng.random() < 0.2:
        head = head.replace(f"Content-Length: {length}", "Transfer-Encoding: chunked")
    async with target.dial() as line:
        if await line.send(head.encode() + body) and rng.random() < 0.8:
            line.half_close()
            await line.answer()
        else:
            line.reset()


async def bad_grant(target: Target, rng: random.Random) -> None:
    """Send a malformed request for a token."""
    body = rng.choice((b"[" * 5_000, b'{"ttl_seconds":1e999}', b'{"ttl_seconds":0}', b"\xff", b"null", b"{" * 3))
    head = f"POST /v1/auth/grant HTTP/1.1\r\nHost: x\r\nAuthorization: Token {target.key}\r\n"
    async with target.dial() as line:
        if await line.send(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body):
            await line.answer()
        await _leave(line, rng)


async def _leave(line: Line, rng: random.Random) -> None:
    """Reset, half-close, or wait some time for the server to close the connection."""
    way = rng.randrange(4)
    if way == 0:
        line.reset()
    elif way == 1:
        line.half_close()
        await line.until_closed(rng.random())
    elif way == 2:
        await line.until_closed(rng.random())


def _jwt(claims: dict[str, object], rng: random.Random) -> tuple[object, object, object]:
    return {"alg": rng.choice(("HS256", "none", "RS256", 5)), "typ": "JWT"}, rng.choice((claims, [], "x")), "s"


def _value(rng: random.Random) -> str:
    odd = ("", "true", "-1", "0", "1e9", "99999999999999999999", "NaN", "%00", "%ff%fe", "%", "%zz", "linear16", "opus",
           "%F0%9F%92%A9", "a" * 300, "word:1e5", ":::", "..", "%0d%0aX:y", "'\"<>")  # fmt: skip
    return rng.choice(odd)

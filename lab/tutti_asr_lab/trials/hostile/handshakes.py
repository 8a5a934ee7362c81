"""Attacks before a stream is open: broken, slow, huge or unauthorized handshakes, requests and uploads.

Each function draws what a hostile client sends on one connection; `raw_connection.perform` plays it.
"""

from __future__ import annotations

import base64
import json
import random
import string

from tutti_asr_lab.trials.hostile.containers import broken, hostile_body
from tutti_asr_lab.trials.hostile.raw_connection import Act, End, Target

LISTEN = "/v1/listen?encoding=linear16&sample_rate=16000"
OTHERS = ("/vosk", "/v1/realtime?intent=transcription", "/v1/twilio?reply=true")
NAMES = (
    "encoding", "sample_rate", "channels", "multichannel", "endpointing", "utterance_end_ms", "keyterm", "keywords",
    "model", "callback", "latency_budget_ms", "interim_interval_ms", "resumable", "tag", "language", "token", "key",
)  # fmt: skip
VALUES = (
    "", "true", "-1", "0", "1e9", "99999999999999999999", "NaN", "%00", "%ff%fe", "%", "%zz", "linear16", "opus",
    "%F0%9F%92%A9", "a" * 300, "word:1e5", ":::", "..", "%0d%0aX:y", "'\"<>",
)  # fmt: skip
SLOW_S = 0.05  # between the bytes of a slow client
LIVE_BYTES = 200_000  # sent of one container
FRAMES_A_MESSAGE = 50  # of a flood, so that floods leave room for other attacks
NARROW = 2_048  # receive buffer of a client that does not read


def garbage(_: Target, rng: random.Random) -> Act:
    """Random bytes instead of a request."""
    return Act(rng.randbytes(rng.randint(1, 4_000)), blind=True)


def truncated(target: Target, rng: random.Random) -> Act:
    """An incomplete handshake."""
    head = target.head(LISTEN)
    return Act(head[: rng.randrange(len(head) - 1)], blind=True)


def slow_loris(target: Target, rng: random.Random) -> Act:
    """An endless head, byte by byte."""
    head = target.head(LISTEN, {"X-Slow": "x" * 200})[: rng.randint(2, 60)]
    return Act(head[:1], [bytes([byte]) for byte in head[1:]], blind=True, messages=0, pause_s=SLOW_S)


def giant_head(target: Target, rng: random.Random) -> Act:
    """Too many or too long headers, or too long a query."""
    size = rng.choice((1_000, 9_000, 70_000, 300_000))
    many = "".join(f"X-{number}: y\r\n" for number in range(size // 10))
    heads = (
        target.head(LISTEN, {"X-Long": "y" * size}),
        target.head(f"{LISTEN}&keyterm={'a' * size}"),
        target.head(LISTEN)[:-2] + many.encode() + b"\r\n",
        target.head("/" + "a" * size),
    )
    return Act(rng.choice(heads), blind=True)


def broken_handshake(target: Target, rng: random.Random) -> Act:
    """A handshake with one error."""
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
    return Act(head)


def bad_credentials(target: Target, rng: random.Random) -> Act:
    """No key, a wrong one, or an unsigned token, in any form."""
    claims = {"aud": "tutti", "sub": "x" * rng.randint(0, 50), "iat": 0, "exp": rng.choice((0, 2**40, "x", None))}
    token: tuple[object, ...] = (
        {"alg": rng.choice(("HS256", "none", "RS256", 5)), "typ": "JWT"},
        rng.choice((claims, [], "x")),
        "s",
    )
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in token]
    printable = "".join(rng.choices(string.printable, k=30))
    secret = rng.choice((".".join(parts), printable, "", "\x00", "ä" * 40, "..", "a.b.c"))
    secret = "".join(c for c in secret if c not in "\r\n")
    scheme = rng.choice(("Token", "bearer", "Basic", ""))
    forms = (
        {"Authorization": f"{scheme} {secret}"},
        {"Authorization": "", "Sec-WebSocket-Protocol": f"{scheme}, {secret}"},
    )
    return Act(target.head(LISTEN, rng.choice(forms), key=None), end=End.NONE)


def bad_origin(target: Target, rng: random.Random) -> Act:
    """A disallowed or invalid origin."""
    origin = rng.choice(("https://evil.example", "null", "http://", "\x7f", "http://[", "https://a:99999999"))
    return Act(target.head(LISTEN, {"Origin": origin}), end=End.NONE)


def bad_query(target: Target, rng: random.Random) -> Act:
    """Random parameters, most of them invalid."""
    pairs = [f"{rng.choice(NAMES)}={rng.choice(VALUES)}" for _ in range(rng.randint(1, 12))]
    path = rng.choice(("/v1/listen", *OTHERS)) + rng.choice("?&") + "&".join(pairs)
    return Act(target.head(path), [rng.randbytes(50)])


def half_open(_: Target, rng: random.Random) -> Act:
    """A connection without a byte."""
    return Act(b"", [b""], blind=True, messages=0, pause_s=rng.random())


def bad_upload(target: Target, rng: random.Random) -> Act:
    """An upload of something that is not a recording, or whose body does not match its head."""
    changed = flipped(target.file[: rng.randint(1, len(target.file))], rng.randint(0, 20), rng)
    body = rng.choice((b"", rng.randbytes(rng.randint(1, 20_000)), changed, target.file[:100]))
    length = len(body) + rng.choice((0, 0, 0, 100, -len(body) // 2))
    path = rng.choice(("/v1/listen", "/v1/listen?encoding=opus&sample_rate=48000", "/v1/audio/transcriptions"))
    kind = rng.choice(("audio/wav", "application/json", "multipart/form-data; boundary=x", "x"))
    request = target.post(path, body, length, f"Content-Type: {kind}\r\n")
    if rng.random() < 0.2:
        request = request.replace(f"Content-Length: {length}".encode(), b"Transfer-Encoding: chunked")
    return Act(request, blind=True, end=End.HALF_ANSWER if rng.random() < 0.8 else End.RESET)


def bad_grant(target: Target, rng: random.Random) -> Act:
    """A malformed request for a token."""
    body = rng.choice((b"[" * 5_000, b'{"ttl_seconds":1e999}', b'{"ttl_seconds":0}', b"\xff", b"null", b"{" * 3))
    return Act(target.post("/v1/auth/grant", body))


def pipelined(target: Target, rng: random.Random) -> Act:
    """Many pipelined requests; the responses may be left unread, and an end or a handshake may follow."""
    request = rng.choice((b"GET /healthz", b"GET /metrics", b"POST /v1/listen")) + b" HTTP/1.1\r\nHost: x\r\n"
    request += rng.choice((b"", b"Content-Length: 3\r\nExpect: 100-continue\r\n")) + b"\r\n"
    count = rng.choice((2, 20, 500))
    frames = [request * count, *([target.head(LISTEN)] if rng.random() < 0.25 else [])]
    end = rng.choice((End.ANSWER, End.LEAVE, End.WAIT, End.NONE))
    messages = max(1, count // FRAMES_A_MESSAGE)
    return Act(b"", frames, blind=True, messages=messages, receive_buffer=NARROW, end=end)


def uploaded_container(target: Target, rng: random.Random) -> Act:
    """An upload of a broken container."""
    body = broken(target.file, target.audio, rng)[:LIVE_BYTES]
    return Act(target.post("/v1/listen", body), blind=True, end=rng.choice((End.ANSWER, End.HALF_ANSWER)))


def uploaded_body(target: Target, rng: random.Random) -> Act:
    """A recording that is long to search, to open or to decode."""
    body = hostile_body(target.file, target.audio, rng)
    end = rng.choices((End.ANSWER, End.RESET, End.NONE), (8, 1, 1))[0]
    return Act(target.post("/v1/listen", body), blind=True, end=end)


def dribbled_body(target: Target, rng: random.Random) -> Act:
    """A body a few bytes at a time."""
    head = target.post("/v1/listen", b"", rng.choice((len(target.file), 10_000_000)))
    parts = [target.file[at * 9 : at * 9 + rng.randint(1, 9)] for at in range(rng.randint(1, 40))]
    return Act(head, parts, blind=True, messages=0, pause_s=SLOW_S, end=rng.choice((End.RESET, End.NONE)))


def new_key_terms(target: Target, rng: random.Random) -> Act:
    """A stream with 200 key terms that no stream had before."""
    return Act(target.head(LISTEN + "".join(f"&keyterm={word(rng)}" for _ in range(200))), end=End.NONE)


def abandoned(target: Target, rng: random.Random) -> Act:
    """A handshake whose client leaves before the answer."""
    return Act(target.head(LISTEN + f"&keyterm={word(rng)}" * rng.randrange(20)), blind=True, end=End.RESET)


def flipped(content: bytes, count: int, rng: random.Random) -> bytes:
    """Return the content with some bytes changed."""
    damaged = bytearray(content)
    for _ in range(count):
        damaged[rng.randrange(len(damaged))] = rng.randrange(256)
    return bytes(damaged)


def word(rng: random.Random) -> str:
    """Return a word of random letters."""
    return "".join(rng.choices(string.ascii_lowercase, k=12))

"""Upload places: admission, bodies that are ended for others, and too slow bodies."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from server.errors import TooManyUploads
from server.protocols import upload_places
from server.protocols.upload_places import GIVES_WAY_S, GRACE_S, SLOW_BYTES_PER_S, Place, Stage, UploadPlaces
from tests.support.servers.live_server import LiveServer
from tests.support.servers.spelling import spell
from tests.support.servers.uploaded import encoded, said

Start = Callable[..., LiveServer]
T0 = 8_675_309.25
LATER = T0 + GIVES_WAY_S


def filled(*owners: str) -> tuple[UploadPlaces, list[Place]]:
    """Return places that are all taken by these owners, whose bodies have sent nothing."""
    places = UploadPlaces(len(owners))
    return places, [places.take(owner, T0) for owner in owners]


def test_bodies_that_make_progress_keep_their_places() -> None:
    places, taken = filled("a", "b")
    for place in taken:
        place.received_bytes = int(SLOW_BYTES_PER_S * GIVES_WAY_S)
    with pytest.raises(TooManyUploads):
        places.take("c", LATER)
    assert not any(place.gave_way for place in taken)


def test_the_slowest_body_is_ended_for_another_after_two_seconds() -> None:
    places, (first, second) = filled("a", "b")
    first.received_bytes = 10
    with pytest.raises(TooManyUploads):
        places.take("c", LATER - 0.1)
    ended: list[str] = []
    second.end_early = lambda: ended.append("second")
    places.take("c", LATER)
    assert (ended, second.gave_way, first.gave_way) == (["second"], True, False)
    places.take("c", LATER)
    assert first.gave_way


def test_a_complete_body_is_never_ended_for_another() -> None:
    places, taken = filled("a", "a", "a")
    for place in taken:
        place.stage = "waiting"
    with pytest.raises(TooManyUploads):
        places.take("c", LATER)


def test_a_caller_with_more_places_loses_one_to_a_new_caller_at_any_rate() -> None:
    places, taken = filled("a", "a", "a", "b")
    for place in taken:
        place.received_bytes = 10**9
    places.take("c", LATER)
    assert [place.gave_way for place in taken].count(True) == 1
    assert not taken[3].gave_way
    with pytest.raises(TooManyUploads):
        places.take("b", LATER)  # it would hold two, as `a` does
    with pytest.raises(TooManyUploads):
        places.take("c", LATER)


def test_a_single_caller_may_take_every_place() -> None:
    places, _ = filled("a", "a")
    with pytest.raises(TooManyUploads):
        places.take("a", T0)


def test_a_place_is_released_once() -> None:
    places, (place,) = filled("a")
    places.release(place)
    places.release(place)
    places.take("b", T0)
    assert [places.count(stage) for stage in get_args(Stage)] == [1, 0, 0]


def test_a_body_is_too_slow_if_it_is_below_the_minimum_rate_after_the_grace_period() -> None:
    place = Place("a", T0)
    assert place.too_slow_at(1_000) == T0 + GRACE_S
    place.received_bytes = 5_000
    assert place.too_slow_at(1_000) == T0 + GRACE_S + 5


HEAD = b"POST /v1/listen HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n%b\r\nRIFF"
FORM = (
    b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n"
    b"Content-Type: multipart/form-data; boundary=x\r\n%b\r\n--x\r\n"
)
Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def begin(server: LiveServer, head: bytes = HEAD, key: str = "") -> Line:
    """Start an upload, and stop sending."""
    reader, writer = await asyncio.open_connection(*server.host.split(":"))
    writer.write(head % (f"Authorization: Token {key}\r\n".encode() if key else b""))
    return reader, writer


def wait_for_bodies(server: LiveServer, number: int) -> None:
    """Return once this many bodies are being received."""
    while server.metric('tutti_uploads_active{stage="receiving"}') < number:
        pass


@pytest.mark.parametrize("head", [HEAD, FORM])
def test_a_body_below_the_minimum_rate_gets_408_long_before_the_timeout(
    live_server: Start, monkeypatch: pytest.MonkeyPatch, head: bytes
) -> None:
    monkeypatch.setattr(upload_places, "GRACE_S", 0.1)
    server = live_server(upload_timeout_s=3_600.0)

    async def upload() -> bytes:
        reader, writer = await begin(server, head)
        answer = await reader.read()
        writer.close()
        return answer

    answer = asyncio.run(upload())
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"slower than 1000 bytes/s" in answer
    server.wait_idle()
    assert server.metric('tutti_uploads_active{stage="receiving"}') == 0


def test_four_slow_bodies_do_not_block_other_uploads(live_server: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload_places, "GIVES_WAY_S", 0.0)
    server = live_server()
    good = encoded(spell("served"), "WAV")

    async def attack() -> list[bytes]:
        lines = [await begin(server) for _ in range(4)]
        await asyncio.to_thread(wait_for_bodies, server, len(lines))
        answer = await asyncio.to_thread(server.http.post, "/v1/listen", content=good)
        assert said(answer.json()) == "served"
        reader, _ = lines[0]
        refused = await reader.read()
        for _, writer in lines:
            writer.transport.abort()
        return [refused]

    (refused,) = asyncio.run(attack())
    assert refused.startswith(b"HTTP/1.1 408 ")
    assert b"send it again" in refused
    server.wait_idle()


def test_a_key_that_holds_every_place_leaves_one_to_another_key(live_server: Start, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("\n".join(hashlib.sha256(key.encode()).hexdigest() for key in ("greedy", "modest")))
    server = live_server(api_keys_file=file)
    good = encoded(spell("served"), "WAV")

    async def attack() -> tuple[int, int]:
        lines = [await begin(server, key="greedy") for _ in range(4)]
        await asyncio.to_thread(wait_for_bodies, server, len(lines))
        codes = []
        for key in ("greedy", "modest"):
            headers = {"Authorization": f"Token {key}"}
            codes.append(await asyncio.to_thread(server.http.post, "/v1/listen", content=good, headers=headers))
        for _, writer in lines:
            writer.transport.abort()
        return codes[0].status_code, codes[1].status_code

    assert asyncio.run(attack()) == (503, 200)
    server.wait_idle()
    assert server.metric('tutti_handshakes_rejected_total{reason="uploads"}') == 1
    assert server.metric('tutti_handshakes_rejected_total{reason="capacity"}') == 0

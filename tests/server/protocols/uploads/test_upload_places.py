"""Upload places: admission, bodies that are ended for others, and too slow bodies."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import get_args

import httpx
import pytest

from server.errors import BacklogExceeded, TooManyUploads
from server.protocols import upload_places
from server.protocols.upload import Upload
from server.protocols.upload_places import GIVES_WAY_S, GRACE_S, SLOW_BYTES_PER_S, Place, Stage, UploadPlaces
from server.settings import UPLOADS_A_PLACE
from tests.support.protocols.bare_http import LISTEN, rest, uploading
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers.spelling import silence, spell
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


def test_uploads_that_are_recognized_are_not_ended_for_the_same_caller() -> None:
    places, taken = filled("a", "a", "a")
    for place in taken:
        place.stage = "recognizing"
    with pytest.raises(TooManyUploads):
        places.take("a", LATER)
    assert not any(place.gave_way for place in taken)


def test_a_caller_whose_recordings_are_recognized_at_every_place_loses_the_newest_to_a_new_caller() -> None:
    places, taken = filled("a", "a", "a")
    ended: list[int] = []
    for number, place in enumerate(taken):
        place.stage, place.end_early = "recognizing", partial(ended.append, number)
    places.take("c", T0)
    assert ended == [2]
    with pytest.raises(TooManyUploads):
        places.take("c", T0)  # it would hold two, as `a` does


def test_a_body_that_arrives_is_ended_before_one_that_is_complete() -> None:
    places, taken = filled("a", "a", "a")
    taken[1].stage = taken[2].stage = "waiting"
    places.take("c", T0)
    assert [place.gave_way for place in taken] == [True, False, False]


def test_bodies_share_the_memory_of_the_largest_ones_and_the_callers_with_the_most_bytes_lose_theirs() -> None:
    places = UploadPlaces(8, max_bytes=1_000)
    large, larger, small = (places.take(owner, T0) for owner in "aab")
    places.receive(large, 500)
    large.stage = "waiting"
    places.receive(small, 100)
    places.receive(larger, 400)
    places.receive(small, 200)
    assert (large.gave_way, larger.gave_way, small.gave_way) == (False, True, False)
    with pytest.raises(TooManyUploads, match="memory"):
        places.receive(small, 501)
    places.receive(larger, 10_000)  # it has no place any more


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


FORM = "POST /v1/audio/transcriptions HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=x\r\n"
GOOD = encoded(spell("served"), "WAV")


def wait_for(server: LiveServer, stage: str, count: int) -> None:
    """Return once this many uploads are at this stage."""
    while server.metric(f'tutti_uploads_active{{stage="{stage}"}}') != count:
        pass


@pytest.mark.parametrize(("head", "body"), [(LISTEN, b"RIFF"), (FORM, b"--x\r\n")])
def test_a_body_below_the_minimum_rate_gets_408_long_before_the_timeout(
    live_server: Start, monkeypatch: pytest.MonkeyPatch, head: str, body: bytes
) -> None:
    monkeypatch.setattr(upload_places, "GRACE_S", 0.1)
    server = live_server()
    with uploading(server, body, head=head, length=100_000) as (bare,):
        answer = rest(bare)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"slower than 1000 bytes/s" in answer
    server.wait_idle()
    assert server.metric('tutti_uploads_active{stage="receiving"}') == 0


def test_slow_bodies_at_every_place_do_not_block_other_uploads(
    live_server: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_places, "GIVES_WAY_S", 0.0)
    server = live_server(max_uploads=1)
    with uploading(server, b"RIFF", length=100_000, count=UPLOADS_A_PLACE) as sockets:
        wait_for(server, "receiving", UPLOADS_A_PLACE)
        assert said(server.http.post("/v1/listen", content=GOOD).json()) == "served"
        refused = rest(sockets[0])
    assert refused.startswith(b"HTTP/1.1 408 ")
    assert b"send it again" in refused
    server.wait_idle()


def test_a_key_that_holds_every_place_leaves_one_to_another_key(live_server: Start, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("\n".join(hashlib.sha256(key.encode()).hexdigest() for key in ("greedy", "modest")))
    server = live_server(api_keys_file=file, max_uploads=1)
    head = LISTEN + "Authorization: Token greedy\r\n"
    with uploading(server, b"RIFF", head=head, length=100_000, count=UPLOADS_A_PLACE):
        wait_for(server, "receiving", UPLOADS_A_PLACE)
        for key, status in (("greedy", 503), ("modest", 200)):
            answer = server.http.post("/v1/listen", content=GOOD, headers={"Authorization": f"Token {key}"})
            assert answer.status_code == status
    server.wait_idle()
    assert server.metric('tutti_handshakes_rejected_total{reason="uploads"}') == 1
    assert server.metric('tutti_handshakes_rejected_total{reason="capacity"}') == 0


@pytest.mark.parametrize(
    ("body", "length", "stage", "cut"),
    [(b"RIFF", 100_000, "receiving", 0), (encoded(silence(3_600.0), "FLAC"), 0, "recognizing", 8)],
    ids=["eight bodies that dribble", "hours of silence"],
)
def test_a_short_recording_is_answered_meanwhile(
    live_server: Start, body: bytes, length: int, stage: str, cut: int
) -> None:
    server = live_server()
    with uploading(server, body, length=length, count=8):
        wait_for(server, stage, 8)
        assert said(server.http.post("/v1/listen", content=GOOD).json()) == "served"
        assert server.metric(f'tutti_uploads_active{{stage="{stage}"}}') == 8
    server.wait_idle()
    assert server.metric('tutti_sessions_total{outcome="client_abort",protocol="upload"}') == cut


FRAMES = b"\xff\xf1\x50\x80\x01\x00\xfc\x00"  # ADTS frames of a byte each: 0.4 s to open for each MiB of them


def test_a_client_that_leaves_while_its_recording_is_opened_gives_its_place_back_at_once(live_server: Start) -> None:
    """And nothing is left on a thread that would delay the end of the process."""
    server = live_server()
    with uploading(server, FRAMES * 2**22):  # 13 s to open
        wait_for(server, "waiting", 1)
    left_s = time.monotonic()
    wait_for(server, "waiting", 0)
    assert time.monotonic() - left_s < 4.0
    server.__exit__()
    assert time.monotonic() - left_s < 8.0


def test_a_recording_that_is_being_opened_does_not_hold_up_a_drain(live_server: Start) -> None:
    """Opening a large body of marks can take minutes."""
    server = live_server(drain_timeout_s=0.5)
    with uploading(server, FRAMES * 2**21) as (bare,):
        server.wait_until(lambda: server.replica.sessions.count("upload") == 1)
        server.server.loop.call_soon_threadsafe(server.replica.drain.begin)
        assert rest(bare).startswith(b"HTTP/1.1 503 ")


def test_an_unexpected_error_in_an_upload_has_the_form_of_its_route(
    live_server: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = live_server()

    def fail(*_: object) -> None:
        raise BacklogExceeded("a defect")

    monkeypatch.setattr(Upload, "run", fail)
    answer = httpx.post(f"http://{server.host}/v1/listen", content=GOOD)
    assert (answer.status_code, answer.json()["err_code"]) == (500, "INTERNAL_ERROR")
    for stream in ("false", "true"):
        form = {"files": {"file": ("a.wav", GOOD)}, "data": {"stream": stream}}
        answer = httpx.post(f"http://{server.host}/v1/audio/transcriptions", **form)
        assert answer.status_code == (500 if stream == "false" else 200)
        assert json.loads(answer.text.removeprefix("data: "))["error"]["type"] == "server_error"
    server.wait_idle()

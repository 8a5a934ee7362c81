"""Recordings that overlap, with the shipped model: order and overlap as constructed, live, uploaded and by Twilio."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import groupby

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from model.acoustic import load_model
from model.decoder import decoder_of
from model.recordings import Utterance, read_pcm
from tests.server.protocols.twilio.test_twilio import STOP, mulaw, start
from tests.server.protocols.twilio.test_twilio_both_tracks import media
from tests.support.audio.speech import development, samples
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import Frame, LiveServer
from tests.support.servers.uploaded import encoded

RATE, CHUNK = 16_000, 1_600
STEREO = "channels=2&multichannel=true&utterances=true"
Turn = tuple[int, bool]  # speaker, and whether the other one spoke at the same time
Way = Callable[[LiveServer, np.ndarray], list[Turn]]


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    model = load_model()
    with LiveServer(model, decoder_of(model.facts, decoder="beam")) as running:
        yield running


def conversation(
    first: Utterance, during: Utterance, after: Utterance, last: Utterance
) -> tuple[np.ndarray, list[Turn]]:
    """Return (S, 2) audio and its turns: `during` begins within `first`; the others follow after 1.5 s each."""
    parts = [read_pcm(one.audio) for one in (first, during, after, last)]
    starts = [RATE // 2, RATE // 2 + len(parts[0]) // 3]
    while len(starts) < len(parts):
        end = max(at + len(part) for at, part in zip(starts, parts, strict=False))
        starts.append(end + 3 * RATE // 2)
    audio = np.zeros((starts[-1] + len(parts[-1]) + RATE, 2), np.int16)
    for channel, at, part in zip((0, 1, 1, 0), starts, parts, strict=True):
        audio[at : at + len(part), channel] += part
    return audio, [(0, True), (1, True), (1, False), (0, False)]


def turns(found: list[Turn]) -> list[Turn]:
    """Join neighbors that are equal: a recording may be more than one final."""
    return [turn for turn, _ in groupby(found)]


def finals(frames: list[Frame]) -> list[Turn]:
    said = [frame for frame in frames if frame.get("is_final") and frame["channel"]["alternatives"][0]["words"]]
    starts = [frame["channel"]["alternatives"][0]["words"][0]["start"] for frame in said]
    assert starts == sorted(starts)
    return turns([(frame["channel_index"][0], frame["overlap"]) for frame in said])


def live(server: LiveServer, audio: np.ndarray) -> list[Turn]:
    with server.listen(channels=2, multichannel="true", utterances="true") as client:
        for at in range(0, len(audio), CHUNK):
            client.send(np.ascontiguousarray(audio[at : at + CHUNK]))
        return finals(client.finish())


def uploaded(server: LiveServer, audio: np.ndarray) -> list[Turn]:
    with server.http as http:
        answer = http.post(f"/v1/listen?{STEREO}", content=encoded(audio, "WAV")).json()
    return turns([(one["speaker"], one["overlap"]) for one in answer["results"]["utterances"]])


def called(server: LiveServer, audio: np.ndarray) -> list[Turn]:
    tracks = [mulaw(np.ascontiguousarray(audio[::2, channel])) for channel in (0, 1)]
    frames: list[Frame] = []
    url = f"ws://{server.host}/v1/twilio?reply=true&track=both&utterances=true"
    with connect(url, compression=None, open_timeout=WAIT_S, close_timeout=WAIT_S) as socket:
        socket.send(start())
        for at in range(0, len(tracks[0]), 160):
            for name, track in zip(("inbound", "outbound"), tracks, strict=True):
                socket.send(media(track[at : at + 160], name, at // 8))
        socket.send(STOP)
        try:
            while True:
                frames.append(json.loads(socket.recv(timeout=WAIT_S)).get("result", {}))
        except ConnectionClosed:
            return finals(frames)


@pytest.mark.parametrize("way", [live, uploaded, called])
def test_overlapping_recordings_keep_their_order(server: LiveServer, way: Way) -> None:
    named = {sample.audio.name: sample for sample in samples()}
    audio, expected = conversation(
        named["account_number.flac"], named["order.flac"], named["call_back.flac"], named["cancel.flac"]
    )
    assert way(server, audio) == expected


@pytest.mark.parametrize("way", [live, uploaded, called])
def test_overlapping_recordings_of_the_development_set_keep_their_order(server: LiveServer, way: Way) -> None:
    long = [one for one in development() if 5.0 < one.duration_s < 7.0][:12:3]
    short = [one for one in development() if 1.5 < one.duration_s < 2.5][:2]
    audio, expected = conversation(long[0], short[0], long[1], long[2])
    found = way(server, audio)
    assert (found[:2], found[-2:]) == (expected[:2], expected[-2:])
    assert {speaker for speaker, _ in found[2:-2]} <= {0}, "the first recording may have a pause"

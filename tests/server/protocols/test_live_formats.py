"""Every encoding in a live stream; undecodable audio ends with an error."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed

from server.audio.raw import alaw_table, mulaw_table
from server.recognition.session_options import Limits
from server.tools.evaluate import coded
from tests.support.audio.media_files import FRAGMENTS, container, flac_head, flac_silence, muxed, opus_packets
from tests.support.protocols.wire_stream import WireStream
from tests.support.servers.live_server import RAW, Frame, LiveServer, transcript
from tests.support.servers.recognizers.spelling import GatedSpellingModel, silence, spell, voiced
from tests.support.streams.transport_bench import ConnectionBench

Start = Callable[..., LiveServer]
TEXT = "hello there"
AUDIO = spell(TEXT)
BOTH = np.stack([spell("left"), spell("rest")], axis=1)  # (S, 2)
SELF_DESCRIBED = {"encoding": None, "sample_rate": None}


def flac(audio: np.ndarray) -> bytes:
    """Return (S,) or (S, C) int16 as a FLAC file."""
    return container("flac", "flac", audio if audio.ndim == 2 else audio[:, None], 16_000)


# Lossless, because the model of these tests reads its text from the level of each sample.
FORMS: dict[str, tuple[dict[str, object], Callable[[], bytes]]] = {
    "linear32": ({"encoding": "linear32"}, lambda: (AUDIO / 32_768).astype("<f4").tobytes()),
    "mulaw": ({"encoding": "mulaw"}, lambda: coded(AUDIO, mulaw_table()).tobytes()),
    "alaw": ({"encoding": "alaw"}, lambda: coded(AUDIO, alaw_table()).tobytes()),
    "flac, named": ({"encoding": "flac", "sample_rate": None}, lambda: flac(AUDIO)),
    "flac, named, with a rate that is not its own": ({"encoding": "flac", "sample_rate": 8_000}, lambda: flac(AUDIO)),
    "flac, sniffed, stereo": (SELF_DESCRIBED, lambda: flac(np.repeat(AUDIO[:, None], 2, 1))),
    "flac in ogg": (SELF_DESCRIBED, lambda: container("ogg", "flac", AUDIO[:, None], 16_000)),
    "flac in fragmented mp4": (
        SELF_DESCRIBED,
        lambda: container("mp4", "flac", AUDIO[:, None], 16_000, options={**FRAGMENTS, "strict": "-2"}),
    ),
    "flac, said to be linear16": ({}, lambda: flac(AUDIO)),
    "wav, said to be mulaw": ({"encoding": "mulaw"}, lambda: container("wav", "pcm_s16le", AUDIO[:, None], 16_000)),
    "wav of 24 bits": (SELF_DESCRIBED, lambda: container("wav", "pcm_s24le", AUDIO[:, None], 16_000)),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_lossless_encoding_is_recognized_in_messages_of_any_size(form: str) -> None:
    query, encode = FORMS[form]
    data, form_of = encode(), RAW | query
    bench = ConnectionBench(Limits(), **{name: str(value) for name, value in form_of.items() if value is not None})

    async def script(_: ConnectionBench) -> None:
        for start in range(0, len(data), 777):
            bench.send(data[start : start + 777])
            await asyncio.sleep(0)
            bench.answer()
        bench.send({"type": "CloseStream"})

    bench.run(script)
    assert transcript(bench.frames) == TEXT
    assert bench.frames[-1]["duration"] == pytest.approx(len(AUDIO) / 16_000, abs=1e-3)
    assert bench.metrics.audio_bytes.value == len(data)


def test_a_flush_and_the_close_wait_for_audio_decoded_on_a_thread(live_server: Start) -> None:
    first, second = flac(spell("one two")), flac(spell("three"))
    with live_server(idle_timeout_s=60.0).listen(**SELF_DESCRIBED) as client:
        client.send(first)
        client.say("Finalize")
        client.say("Configure", keyterms=[])
        client.say("CloseStream")
        client.send(second)  # after the end: ignored
        frames, code, _ = client.rest()
    assert transcript(frames) == "one two"
    assert sorted(f["type"] for f in frames) == ["ConfigureSuccess", "Metadata", "Results", "Results"]
    assert [f["from_finalize"] for f in frames if f["type"] == "Results"] == [True, False]
    assert code == 1000


def test_multichannel_recognizes_each_channel_of_a_container(live_server: Start) -> None:
    server = live_server()
    with server.listen(**SELF_DESCRIBED, channels=2, multichannel="true") as client:
        client.send(flac(BOTH))
        frames = client.finish()
    assert {f["channel_index"][0]: transcript([f]) for f in frames if f["type"] == "Results"} == {0: "left", 1: "rest"}
    for channels in (1, 2):
        with server.listen(**SELF_DESCRIBED, channels=channels, multichannel="true") as client:
            client.send(flac(BOTH if channels == 1 else AUDIO))
            (error,), code, _ = client.rest()
        assert error["description"].startswith("channels: ")
        assert code == 1008
    server.wait_idle()


@pytest.mark.parametrize(
    ("query", "data", "named"),
    [
        (SELF_DESCRIBED, b"garbage garbage", "unrecognized container (not WAV, Ogg, WebM, FLAC, MP3"),
        (SELF_DESCRIBED, b"ID3\x04" + bytes(100), "encoding and sample_rate"),
        ({"encoding": "flac"}, b"RIFF" + bytes(100), ""),
        (SELF_DESCRIBED, b"#!AMR\n" + bytes(100), "upload the recording"),
        ({"encoding": "ogg-opus"}, b"OggS" + b"\xff" * 500, ""),
        ({"encoding": "opus", "sample_rate": 48_000}, b"OggS" + bytes(100), "ogg-opus"),
    ],
)
def test_undecodable_audio_is_answered_by_an_error_frame_and_closed_with_1008(
    live_server: Start, query: dict[str, object], data: bytes, named: str
) -> None:
    server = live_server()
    with server.listen() as other:
        with server.listen(**query) as client:
            client.send(data)
            with contextlib.suppress(ConnectionClosed):  # some are refused at the first bytes
                client.say("CloseStream")
            (error,), code, reason = client.rest()
        assert (error["type"], error["variant"]) == ("Error", "DATA-0000")
        assert named in error["description"]
        assert (code, reason.split()[0]) == (1008, "DATA-0000")
        other.send(AUDIO)
        assert transcript(other.finish()) == TEXT
    server.wait_idle()
    assert server.metric('tutti_sessions_total{outcome="error",protocol="deepgram"}') == 1


@pytest.mark.parametrize("query", [SELF_DESCRIBED, {}])
def test_a_control_message_in_a_binary_frame_is_handled(live_server: Start, query: dict[str, object]) -> None:
    """Treated as audio it would be lost, and the client would wait for its answer."""
    data = flac(AUDIO) if query else AUDIO.tobytes()
    with live_server().listen(**query) as client:
        client.send(data[: len(data) // 2 * 2 // 3 * 2])
        client.send(b'{"type":"KeepAlive"}')
        client.send(data[len(data) // 2 * 2 // 3 * 2 :])
        client.send(b'{"type":"Finalize"}')
        frames = client.until(lambda f: f.get("from_finalize", False))
        client.send(b'{"type":"Rewind"}')
        (refused,) = client.until(lambda f: f["type"] == "Error")
        client.send(b'{"type":"CloseStream"}')
        rest, code, _ = client.rest()
    assert transcript(frames) == TEXT
    assert (refused["variant"], rest[-1]["type"], code) == ("SchemaError", "Metadata", 1000)


def test_consecutive_streams_are_recognized_in_one_connection(live_server: Start) -> None:
    with live_server().listen(**SELF_DESCRIBED, endpointing="false") as client:
        for word in ("one", "two", "three"):
            client.send(flac(np.concatenate([spell(word), silence(0.2)])))
        assert transcript(client.finish()).replace(" ", "") == "onetwothree"


def test_damaged_packets_and_lost_bytes_are_counted_in_metrics(live_server: Start) -> None:
    packets = opus_packets(np.zeros((48_000, 1), np.int16))
    server = live_server()
    with server.listen(encoding="opus", sample_rate=48_000) as client:
        for i, packet in enumerate(packets):
            client.send(b"\xff" * 100 if i in {3, 20} else packet)
        client.finish()
    webm = container("webm", "libopus", np.zeros((96_000, 1), np.int16), 48_000, options={"live": "1"})
    with server.listen(**SELF_DESCRIBED) as client:
        client.send(webm[:600] + b"lost in transit" + webm[600:])
        client.finish()
    server.wait_idle()
    assert server.metric('tutti_audio_losses_total{kind="concealed_packet"}') == 2
    assert server.metric('tutti_audio_losses_total{kind="resynchronized"}') == 1


@pytest.mark.parametrize(
    "form", ["wav of 24 bits", "flac in ogg", "flac in fragmented mp4", "flac, said to be linear16"]
)
def test_a_truncated_stream_gets_a_warning_in_its_last_frame(live_server: Start, form: str) -> None:
    server = live_server()
    query, encode = FORMS[form]
    whole = encode()
    for data, expected in ((whole, []), (whole[:-20], ["truncated"])):
        with server.listen(**query) as client:
            client.send(data)
            metadata = client.finish()[-1]
        assert [warning["type"] for warning in metadata.get("warnings", [])] == expected
    messages = [warning["message"] for warning in metadata["warnings"]]
    upload = server.http.post("/v1/listen", content=data)
    if form == "flac in ogg":  # its only page is cut, so there is no audio
        assert upload.status_code == 400
        assert upload.json()["err_msg"] == "; ".join(["the recording has no audio", *messages])
    else:
        assert [warning["message"] for warning in upload.json()["metadata"]["warnings"]] == messages


def test_concealed_damage_gets_a_warning_in_the_last_frame(live_server: Start) -> None:
    with live_server().listen(encoding="opus", sample_rate=48_000) as client:
        for i, packet in enumerate(opus_packets(np.zeros((48_000, 1), np.int16))):
            client.send(b"\xff" * 100 if i == 3 else packet)
        (warning,) = client.finish()[-1]["warnings"]
    assert (warning["parameter"], warning["type"]) == ("audio", "damaged")
    assert "1 packet" in warning["message"]


QUIET_S = 240
QUIET: dict[str, Callable[[], bytes]] = {
    "flac": lambda: flac(silence(QUIET_S)),
    "flac in ogg, pages of a minute": lambda: container(
        "ogg", "flac", silence(QUIET_S)[:, None], 16_000, options={"page_duration": "60000000"}
    ),
    "opus in ogg without transmission of silence": lambda: muxed("ogg", quiet_packets(20)),
    "opus in webm without transmission of silence": lambda: muxed("webm", quiet_packets(20)),
    "opus in webm of one packet in a minute": lambda: muxed("webm", quiet_packets(3_000)),
}


def quiet_packets(step: int) -> dict[int, bytes]:
    """Return every n-th packet, by its index."""
    packet = opus_packets(np.zeros((48_000, 1), np.int16))[-1]
    return dict.fromkeys(range(0, 50 * QUIET_S, step), packet)


@pytest.mark.parametrize("name", QUIET)
def test_minutes_of_silence_in_one_small_message_are_processed_completely(live_server: Start, name: str) -> None:
    body = QUIET[name]()
    with live_server().listen(**SELF_DESCRIBED) as client:
        client.send(body)
        client.say("CloseStream")
        frames, code, reason = client.rest()
    assert (code, reason) == (1000, "")
    assert frames[-1]["duration"] == pytest.approx(QUIET_S, abs=61 if "one packet" in name else 2.0)


def test_a_decompression_bomb_ends_with_its_own_error(live_server: Start) -> None:
    server = live_server()
    with server.listen(**SELF_DESCRIBED) as client:
        client.send(flac_head() + b"".join(flac_silence(n) for n in range(300)))  # twenty minutes in 4.2 kB
        frames, code, reason = client.rest()
    assert (frames[-1]["type"], frames[-1]["variant"]) == ("Error", "DATA-0000")
    assert "its size and the time elapsed" in frames[-1]["description"]
    assert (code, reason.split()[0]) == (1008, "DATA-0000")
    server.wait_idle()


def test_a_client_lost_while_its_container_is_decoded_leaves_no_slot_and_no_session(live_server: Start) -> None:
    model = GatedSpellingModel()
    server = live_server(model=model)
    client = server.listen(**SELF_DESCRIBED)
    model.shut()
    client.send(flac(np.concatenate([AUDIO, silence(20.0)])))
    model.wait_inside()
    client.vanish()
    model.open()
    server.wait_idle()
    assert server.metric('tutti_sessions_total{outcome="client_abort",protocol="deepgram"}') == 1


TURN_AUDIO = np.concatenate([voiced("hello there"), silence(1.5), voiced("you"), silence(1.5)])


def turns(server: LiveServer, *messages: bytes | Frame) -> list[Frame]:
    """Return the messages of a stream at `/v2/listen`, with early ends."""
    url = {"path": "/v2/listen", "model": "flux-general-en", "eager_eot_threshold": 0.4}
    with WireStream(server, "flux", **url) as stream:
        with contextlib.suppress(ConnectionClosed):
            for message in (*messages, {"type": "CloseStream"}):
                stream.send(message)
        stream.rest()
    return stream.frames


def test_a_configure_between_messages_of_a_container_counts_from_there(live_server: Start) -> None:
    first, second = (np.concatenate([voiced(text), silence(1.5)]) for text in ("one", "two"))
    configure = {"type": "Configure", "thresholds": {"eot_threshold": 1.0, "eot_timeout_ms": 1_000}}
    received = turns(live_server(), flac(first), configure, flac(second))
    ends = [message["trigger"] for message in received if message.get("event") == "EndOfTurn"]
    assert ends == ["model", "timeout"]


def test_a_forced_end_waits_for_the_container_before_it(live_server: Start) -> None:
    force, first, second = {"type": "ForceEndTurn"}, flac(voiced("one")), flac(voiced("two"))
    received = turns(live_server(), first[:900], first[900:], force, second, b"", force)
    ends = [(each["transcript"], each["trigger"]) for each in received if each.get("event") == "EndOfTurn"]
    assert ends == [("One.", "manual"), ("Two.", "manual")]


def test_audio_of_turns_that_cannot_be_decoded_ends_with_an_error_and_damage_with_a_warning(live_server: Start) -> None:
    server, whole = live_server(), flac(TURN_AUDIO)
    error = turns(server, b"garbage garbage")[-1]
    assert (error["type"], error["code"]) == ("Error", "UNPARSABLE_CLIENT_MESSAGE")
    assert error["description"].startswith("unrecognized container")
    assert [message["type"] for message in turns(server, whole)[-2:]] == ["TurnInfo", "TurnInfo"]
    warning = turns(server, whole[:-20])[-1]
    assert (warning["type"], warning["code"]) == ("Warning", "AUDIO_WARNING")
    assert warning["description"].startswith("truncated: ")
    server.wait_idle()

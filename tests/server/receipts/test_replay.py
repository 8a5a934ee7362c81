"""Replays of real speech: nothing differs, and each thing that was changed is named."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import soundfile

from model import checkpoint
from server.receipts.keys import ReceiptKeys
from server.receipts.receipt import ModelInfo, Setup
from server.receipts.recorded import BadReceipt, Recorded
from server.recognition.session_options import Limits
from server.settings import Settings
from server.tools.replay import Replayer, _limits
from tests.support.servers.live_server import Frame
from tests.support.servers.receipted import RATE, record, recorded, shipped_server, spoken, with_keys

SPOKEN = ("order", "call_back", "account_number")
Streams = SimpleNamespace


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Streams]:
    folder = tmp_path_factory.mktemp("receipts")
    key_file, keys = with_keys(folder)
    audio = spoken(*SPOKEN)
    with shipped_server(key_file) as server, asyncio.Runner() as runner:
        frames = record(server, audio, keyterm="order", smart_format="true")
        opened = Replayer.opened(Settings(), keys)
        replayer = runner.run(opened.__aenter__())

        def replay(found: Recorded, path: Path) -> list[str]:
            return [str(each) for each in runner.run(replayer.differences(found, path))]

        yield Streams(server=server, keys=keys, audio=audio, frames=frames, replay=replay)
        runner.run(opened.__aexit__(None, None, None))


def written(folder: Path, audio: np.ndarray, rate: int = RATE) -> Path:
    path = folder / "audio.wav"
    soundfile.write(path, audio, rate)
    return path


def with_settings(
    found: Recorded, audio: Path, keys: ReceiptKeys, *, may_lack_end: bool = False, **settings: Any
) -> list[str]:
    """Return the differences with other settings than the stream's, or with other keys."""

    async def run() -> list[str]:
        async with Replayer.opened(Settings(**settings), keys, may_lack_end=may_lack_end) as replayer:
            return [str(each) for each in await replayer.differences(found, audio)]

    return asyncio.run(run())


def parts(found: list[str]) -> list[str]:
    return [each.partition(":")[0] for each in found]


def test_a_stream_without_changes_is_the_same(streams: Streams, tmp_path: Path) -> None:
    found = recorded(streams.frames)
    assert "Where is my order?" in [entry.transcript for entry in found.finals]
    assert streams.replay(found, written(tmp_path, streams.audio)) == []


@pytest.mark.parametrize(
    "query",
    [
        {"interim_results": "true", "endpointing": "false"},
        {"redact": "pci", "vad_events": "true"},
        {"utterance_end_ms": "1000", "step_results": "true"},
        {"sample_rate": 8_000},
        {"grammar": "digits"},
    ],
    ids=str,
)
def test_streams_with_other_options_are_the_same(streams: Streams, tmp_path: Path, query: Any) -> None:
    rate = query.get("sample_rate", RATE)
    audio = streams.audio[:: RATE // rate].copy()
    found = recorded(record(streams.server, audio, **query))
    assert len(found.finals) >= 1
    assert streams.replay(found, written(tmp_path, audio, rate)) == []


@pytest.mark.parametrize("query", [{"multichannel": "true"}, {"multichannel": "true", "utterances": "true"}, {}])
def test_two_channels_are_the_same(streams: Streams, tmp_path: Path, query: Any) -> None:
    audio = np.stack([streams.audio, np.roll(streams.audio, 2 * RATE)], axis=1)
    found = recorded(record(streams.server, audio, channels=2, **query))
    assert streams.replay(found, written(tmp_path, audio)) == []


def test_a_flush_that_the_client_asked_for_is_repeated_at_its_sample(streams: Streams, tmp_path: Path) -> None:
    found = recorded(record(streams.server, streams.audio, finalize_at=50_001))
    assert "finalize" in {entry.receipt.final.reason for entry in found.finals}
    assert streams.replay(found, written(tmp_path, streams.audio)) == []


def test_a_stream_whose_end_is_missing_is_named_unless_its_connection_was_lost(
    streams: Streams, tmp_path: Path
) -> None:
    call, path = Recorded(recorded(streams.frames).entries[:2]), written(tmp_path, streams.audio)
    assert call.closed is None
    (difference,) = streams.replay(call, path)
    assert difference.startswith("end of the stream: no receipt closes the stream")
    assert with_settings(call, path, streams.keys, may_lack_end=True) == []


def test_own_written_forms_have_to_be_those_of_the_stream(tmp_path: Path) -> None:
    key_file, keys = with_keys(tmp_path)
    forms, others = tmp_path / "forms.tsv", tmp_path / "others.tsv"
    forms.write_text("my order\tMy Order™\n")
    others.write_text("my order\tmy order no.\n")
    audio = spoken("order")
    with shipped_server(key_file, written_forms=forms) as server:
        found = recorded(record(server, audio, smart_format="true"))
    assert found.finals[0].transcript == "Where is My Order™?"
    path = written(tmp_path, audio)
    assert with_settings(found, path, keys, written_forms=forms) == []
    for here, named in ({}, "none"), ({"written_forms": others}, ""):
        (difference,) = with_settings(found, path, keys, **here)
        assert difference.startswith(f"settings: written forms {named}")


def test_the_audio_may_be_the_bytes_that_were_sent(streams: Streams, tmp_path: Path) -> None:
    path = tmp_path / "audio.raw"
    path.write_bytes(streams.audio.tobytes())
    assert streams.replay(recorded(streams.frames), path) == []


# What was changed


def test_a_flipped_bit_of_a_sample_is_found_between_two_finals(streams: Streams, tmp_path: Path) -> None:
    audio, found = streams.audio.copy(), recorded(streams.frames)
    ends = [entry.receipt.audio.end for entry in found.entries]
    at = (ends[0] + ends[1]) // 2
    audio[at] ^= 1
    (difference,) = streams.replay(found, written(tmp_path, audio))
    assert difference.startswith(f"audio: differs between the samples {ends[0]} and {ends[1]}")


@pytest.mark.parametrize("count", [-1, 1])
def test_audio_of_another_length_is_named(streams: Streams, tmp_path: Path, count: int) -> None:
    audio = streams.audio[:count] if count < 0 else np.append(streams.audio, np.int16(0))
    found = streams.replay(recorded(streams.frames), written(tmp_path, audio))
    assert parts(found) == ["audio"]


def test_a_flipped_bit_of_a_weight_is_named(streams: Streams, tmp_path: Path) -> None:
    path = tmp_path / "flipped.safetensors"
    blob = bytearray(checkpoint.GRU.read_bytes())
    blob[-1000] ^= 1
    path.write_bytes(blob)
    shutil.copy(checkpoint.GRU.with_suffix(".json"), path.with_suffix(".json"))
    found = with_settings(recorded(streams.frames), written(tmp_path, streams.audio), streams.keys, model=path)
    assert parts(found) == ["model"]


def test_another_language_model_is_named(streams: Streams, tmp_path: Path) -> None:
    found = with_settings(recorded(streams.frames), written(tmp_path, streams.audio), streams.keys, lm="off")
    assert parts(found) == ["language model"]


def test_another_width_of_the_search_is_named_as_the_decoder(streams: Streams, tmp_path: Path) -> None:
    found = with_settings(recorded(streams.frames), written(tmp_path, streams.audio), streams.keys, beams=3)
    assert parts(found) == ["decoder"]


def resigned(frames: list[Frame], keys: ReceiptKeys, change: Callable[[dict[str, Any]], None]) -> Recorded:
    """Change each payload and sign it again: what an owner of the key could do."""
    changed = []
    for frame in frames:
        if "receipt" in frame:
            payload = json.loads(keys.verify(frame["receipt"]))
            change(payload)
            changed.append(frame | {"receipt": keys.sign(msgspec.json.encode(payload))})
    return recorded(changed)


def test_a_changed_key_term_is_named(streams: Streams, tmp_path: Path) -> None:
    def change(payload: dict[str, Any]) -> None:
        for pair in payload.get("setup", {}).get("query", ()):
            if pair[0] == "keyterm":
                pair[1] = "ordet"

    found = streams.replay(resigned(streams.frames, streams.keys, change), written(tmp_path, streams.audio))
    assert set(parts(found)) == {"key terms", "order of finals"}


def test_a_changed_setting_is_named(streams: Streams, tmp_path: Path) -> None:
    def change(payload: dict[str, Any]) -> None:
        if "setup" in payload:
            payload["setup"]["settings"]["min_endpoint_ms"] = 401.0

    found = streams.replay(resigned(streams.frames, streams.keys, change), written(tmp_path, streams.audio))
    assert set(parts(found)) == {"settings", "order of finals"}


def test_settings_of_the_stream_are_used_and_not_those_here(streams: Streams, tmp_path: Path) -> None:
    found = with_settings(
        recorded(streams.frames),
        written(tmp_path, streams.audio),
        streams.keys,
        min_endpoint_ms=900.0,
        finals="accurate",
    )
    assert found == []


def final_frame(frames: list[Frame]) -> int:
    return next(
        at for at, frame in enumerate(frames) if "receipt" in frame and frame["channel"]["alternatives"][0]["words"]
    )


def test_a_word_that_was_signed_and_is_not_derived_is_named(streams: Streams, tmp_path: Path) -> None:
    """What a broken core would do: everything is signed and consistent, and one word is another."""

    def change(payload: dict[str, Any]) -> None:
        if payload["number"] == 0:
            payload["final"]["duration"] += 0.08

    at = final_frame(streams.frames)
    frames = json.loads(json.dumps(streams.frames))
    frames[at]["duration"] = round(frames[at]["duration"] + 0.08, 6)
    (*_, found) = streams.replay(resigned(frames, streams.keys, change), written(tmp_path, streams.audio))
    assert found.startswith("words: receipt 0: duration")


def test_receipts_of_another_key_are_named(streams: Streams, tmp_path: Path) -> None:
    found = with_settings(recorded(streams.frames), written(tmp_path, streams.audio), ReceiptKeys.new())
    assert parts(found) == ["signature"] * len(recorded(streams.frames).entries)


def test_without_the_first_receipt_there_is_no_replay(streams: Streams, tmp_path: Path) -> None:
    found = Recorded(recorded(streams.frames).entries[1:])
    with pytest.raises(BadReceipt, match="the first receipt of the stream is missing"):
        streams.replay(found, written(tmp_path, streams.audio))


@pytest.mark.parametrize("here_s", [None, 0.8])
@pytest.mark.parametrize("rest_s", [None, 1.5])
def test_a_replay_rests_as_the_server_of_the_stream_did(here_s: float | None, rest_s: float | None) -> None:
    settings: dict[str, float | str | None] = {} if rest_s is None else {"rest_s": rest_s}
    setup = Setup("", ModelInfo("", "", "", "", 1), (), settings)
    assert _limits(setup, Limits(rest_s=here_s)).rest_s == rest_s

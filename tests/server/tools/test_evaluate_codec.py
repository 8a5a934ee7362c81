"""`tutti evaluate --codec`: telephone codecs."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner

from server.cli import app
from server.tools.evaluate import LINE_RATE, TABLES, CodedTranscriber, coded
from tests.support.audio.speech import SAMPLES


@pytest.mark.parametrize(("name", "subtype", "worst"), [("mulaw", "ULAW", 0.04), ("alaw", "ALAW", 0.04)])
def test_samples_are_encoded_to_the_nearest_code(name: str, subtype: str, worst: float) -> None:
    """Like libsndfile except for ties; all codes but the second zero survive a round trip."""
    table = TABLES[name]()
    pcm = np.arange(-32_768, 32_768).astype(np.int16)
    error = np.abs(table[coded(pcm, table)].astype(int) - pcm)
    loud = np.abs(pcm.astype(int)) > 256
    inside = np.abs(pcm.astype(int)) < 32_000
    assert (error[loud & inside] / np.abs(pcm[loud & inside].astype(float))).max() < worst
    file = io.BytesIO()
    soundfile.write(file, pcm, LINE_RATE, format="RAW", subtype=subtype)
    theirs = table[np.frombuffer(file.getvalue(), np.uint8)]
    assert (error <= np.abs(theirs.astype(int) - pcm)).all()
    assert np.array_equal(table[coded(table, table)], table)


def test_a_recording_is_coded_chunk_by_chunk() -> None:
    received: list[bytes] = []

    class Local:
        async def stream(self, pcm: AsyncIterator[bytes]) -> AsyncIterator[str]:
            async for chunk in pcm:
                received.append(chunk)
                yield "message"

    async def source() -> AsyncIterator[bytes]:
        for start in range(0, 1_000, 100):
            yield np.arange(start, start + 100, dtype="<i2").tobytes()

    async def run() -> list[str]:
        return [message async for message in CodedTranscriber(Local(), TABLES["mulaw"]()).stream(source())]

    assert len(asyncio.run(run())) == 10
    samples = np.frombuffer(b"".join(received), "<i2")
    assert samples[:3].tolist() == [0, 0, 0]
    assert np.abs(samples - np.arange(1_000)).max() <= 32
    assert not np.array_equal(samples, np.arange(1_000))


def test_error_rates_with_and_without_a_codec_are_in_one_report(tmp_path: Path) -> None:
    lines = SAMPLES.read_text(encoding="utf-8").splitlines()
    few = [json.loads(line) for line in lines if "call_back" in line or '"yes.flac"' in line]
    manifest = tmp_path / "few.jsonl"
    manifest.write_text("".join(json.dumps({**u, "audio": str(SAMPLES.parent / u["audio"])}) + "\n" for u in few))
    options = ["--decoder", "greedy", "--precision", "fp32", "--codec", "none,mulaw", "--json"]
    result = CliRunner().invoke(app, ["evaluate", "--manifest", str(manifest), *options])
    assert result.exit_code == 0, result.output
    plain, coded_ = json.loads(result.stdout.splitlines()[-1])["combinations"]
    assert "codec" not in plain
    assert coded_["codec"] == "mulaw"
    assert plain["texts_sha256"] != coded_["texts_sha256"], "the codec changes at least one word"
    assert "fp32 greedy mulaw" in result.stderr


@pytest.mark.parametrize("options", [["--codec", "gsm"], ["--codec", "mulaw", "--url", "ws://127.0.0.1:9"]])
def test_an_unknown_codec_or_a_codec_with_url_is_rejected(options: list[str]) -> None:
    result = CliRunner().invoke(app, ["evaluate", "--manifest", str(SAMPLES), *options])
    assert result.exit_code == 2
    assert "--codec" in result.output

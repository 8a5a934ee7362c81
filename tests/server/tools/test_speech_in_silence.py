"""The shipped model, without voice activity detection, on audio without speech and on quiet speech."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from model.recordings import read_pcm
from server.audio.pcm import PCM
from server.settings import Settings
from server.tools.local import open_local
from tutti_asr_client.messages import Results, SpeechStarted

SAMPLES = Path(__file__).parents[3] / "model" / "samples"
RATE, SECONDS = 16_000, 30


def sounds() -> dict[str, PCM]:
    """Half a minute of each kind, at the level with the most false words."""
    times = np.arange(RATE * SECONDS) / RATE
    white = np.random.default_rng(3).standard_normal(len(times))
    spectrum = np.fft.rfft(white)
    pink = np.fft.irfft(spectrum / np.sqrt(np.maximum(1, np.arange(len(spectrum)))), len(times))
    hum = sum(np.sin(2 * np.pi * 50 * n * times) / n for n in range(1, 9))
    waves = {
        "zeros": (0 * times, 0),
        "white -50": (white, -50),
        "white -40": (white, -40),
        "pink -50": (pink / pink.std(), -50),
        "tone -60": (np.sin(2 * np.pi * 440 * times), -60),
        "hum -45": (hum, -45),
        "constant -50": (0 * times + 1, -50),
    }
    return {name: np.rint(wave * 32_768 * 10 ** (db / 20)).astype(np.int16) for name, (wave, db) in waves.items()}


async def recognized(decoder: Literal["beam", "greedy"], audio: dict[str, PCM]) -> dict[str, tuple[int, str]]:
    """Count the starts of speech and join all words of interims and finals, for each audio."""

    async def one(pcm: PCM) -> tuple[int, str]:
        async def chunks() -> AsyncIterator[bytes]:
            for begin in range(0, len(pcm), RATE):
                yield pcm[begin : begin + RATE].tobytes()

        messages = [message async for message in transcriber.stream(chunks())]
        words = [w.word for m in messages if isinstance(m, Results) for w in m.words]
        return sum(isinstance(message, SpeechStarted) for message in messages), " ".join(words)

    async with open_local(Settings(decoder=decoder), vad_events=True) as transcriber:
        return dict(zip(audio, await asyncio.gather(*map(one, audio.values())), strict=True))


@pytest.mark.parametrize("decoder", ["beam", "greedy"])
def test_silence_and_noise_have_no_words(decoder: Literal["beam", "greedy"]) -> None:
    audio = sounds()
    assert asyncio.run(recognized(decoder, audio)) == dict.fromkeys(audio, (0, ""))


def test_quiet_speech_is_recognized_and_noise_after_it_is_not() -> None:
    """The gain is -30 dB."""
    quiet = np.rint(read_pcm(SAMPLES / "porch_fan.flac") * 10**-1.5).astype(np.int16)
    found = asyncio.run(recognized("beam", {"quiet": quiet, "after": np.concatenate([quiet, sounds()["white -50"]])}))
    assert found["quiet"][0] >= 1
    assert "fan" in found["quiet"][1]
    assert found["after"][0] <= found["quiet"][0] + 1

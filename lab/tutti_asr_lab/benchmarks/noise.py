"""Words that a model writes without speech, in recordings of barks, doors, rain and wind.

python -m tutti_asr_lab.benchmarks.noise ../shared/data/noise.jsonl --model tutti-gru
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from model.recordings import read_manifests, read_pcm
from server.audio.pcm import PCM
from server.settings import Settings
from server.tools.local import LocalTranscriber, open_local
from tutti_asr_client.messages import Results

RATE = 16_000


async def words_in(transcriber: LocalTranscriber, pcm: PCM) -> list[str]:
    """Return the words of all finals of a recording."""

    async def seconds() -> AsyncIterator[bytes]:
        for begin in range(0, len(pcm), RATE):
            yield pcm[begin : begin + RATE].tobytes()

    messages = [message async for message in transcriber.stream(seconds())]
    finals = [message for message in messages if isinstance(message, Results) and message.is_final]
    return [word.word for final in finals for word in final.words]


async def main(manifest: Path, model: Path | None, longest_s: float) -> None:
    """Print how many words were written, and in how many recordings."""
    recordings = [read_pcm(noise.audio)[: round(longest_s * RATE)] for noise in read_manifests([manifest], texts=False)]
    async with open_local(Settings.model_validate({"model": model})) as transcriber:
        words = [await words_in(transcriber, pcm) for pcm in recordings]
    minutes = sum(map(len, recordings)) / RATE / 60
    print(  # noqa: T201
        f"{sum(map(len, words))} words in {sum(map(bool, words))} of {len(words)} recordings, {minutes:.1f} minutes"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--model", type=Path, help="the default model if it is left out")
    parser.add_argument("--longest-s", type=float, default=10.0, help="of each recording")
    options = parser.parse_args()
    asyncio.run(main(options.manifest, options.model, options.longest_s))

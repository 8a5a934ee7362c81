"""Evaluate recordings with an engine in this process or a server, as recorded or through a telephone codec."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from model.evaluation.normalization import DEFAULT, Normalization, normalizer, one_sided
from model.evaluation.parts import parts_of
from model.evaluation.scoring import FACTS, Score, report_with_intervals, score
from model.evaluation.stability import ShownWord, Stability, View
from model.recordings import Utterance
from model.text.letters import has_ideographs
from server.audio.pcm import PCM
from server.audio.raw import alaw_table, mulaw_table
from server.settings import Settings
from server.tools.local import open_local
from tutti_asr_client.errors import ClientError
from tutti_asr_client.files.display import Display
from tutti_asr_client.files.file_result import Failed, Transcribed
from tutti_asr_client.files.transcribe import OpenTranscriber, transcribe_files
from tutti_asr_client.files.transcriber import RemoteTranscriber, Transcriber
from tutti_asr_client.messages import Results
from tutti_asr_client.transcript import Transcript

LINE_RATE = 8_000  # Hz, sample rate of telephony
TABLES: dict[str, Callable[[], PCM]] = {"mulaw": mulaw_table, "alaw": alaw_table}


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Texts in manifest order, recognition time in seconds, and stability of partials if measured.

    `core_s`: processor time of the recognition, over all cores; None if another process recognized.
    """

    utterances: Sequence[Utterance]
    texts: tuple[str, ...]
    elapsed_s: float
    stability: Stability | None = None
    core_s: float | None = None

    def figures(self, normalization: Normalization = DEFAULT, *, by_part: bool = False) -> dict[str, object]:
        """Return, JSON-ready, error rates pooled and by source, speed, and a digest of all texts to compare runs.

        `by_part` adds the rates of parts A and B of the recordings (`model/evaluation/parts`). Raises: MissingPackage.
        """
        normalized = normalizer(normalization)
        references = [normalized(u.text) for u in self.utterances]
        texts = [normalized(text) for text in self.texts]
        scored = [(u.source, score(*pair)) for u, *pair in zip(self.utterances, references, texts, strict=True)]
        audio_s = sum(u.duration_s for u in self.utterances)
        return {
            **report_with_intervals(scored),
            "bootstrap": FACTS,
            **({"by_part": self._by_part(scored)} if by_part else {}),
            "normalize": normalization,
            "references_normalized": _changed((u.text for u in self.utterances), references),
            "transcripts_normalized": _changed(self.texts, texts),
            "references_without_words": references.count(""),
            "references_in_characters": sum(map(has_ideographs, references)),
            "one_sided": one_sided(normalization, references, texts),
            "audio_s": round(audio_s, 1),
            "elapsed_s": round(self.elapsed_s, 2),
            "real_time_factor": round(self.elapsed_s / audio_s, 5) if audio_s else None,
            "core_s_per_hour": None if self.core_s is None or not audio_s else round(self.core_s * 3_600 / audio_s, 1),
            "texts_sha256": hashlib.sha256("\n".join(self.texts).encode()).hexdigest(),
            **({} if self.stability is None else {"partials": self.stability.figures()}),
        }

    def _by_part(self, scored: Sequence[tuple[str, Score]]) -> dict[str, object]:
        parts = parts_of(self.utterances)
        return {
            name: report_with_intervals([one for part, one in zip(parts, scored, strict=True) if part == name])
            for name in sorted({*parts})
        }

    def lines(self, **facts: object) -> list[str]:
        """Return a JSON line for each recording: audio, source, reference, text, and `facts`."""
        return [
            json.dumps({"audio": u.audio.name, "source": u.source, "reference": u.text, "text": text, **facts})
            for u, text in zip(self.utterances, self.texts, strict=True)
        ]


def _changed(originals: Iterable[str], normalized: Sequence[str]) -> int:
    """Return the number of texts that normalization changed in more than white space."""
    return sum(" ".join(text.split()) != other for text, other in zip(originals, normalized, strict=True))


class EvaluationFailed(Exception):
    """Some recordings failed, so error rates would be too low; or the query was refused."""


class Watch(Display):
    """Records what a client would show: the words of each message, by recording."""

    def __init__(self) -> None:
        self._views: dict[Path, list[View]] = {}

    def results(self, path: Path, results: Results, transcript: Transcript) -> None:  # noqa: ARG002 - interface of a display
        """Record one message."""
        words = tuple(ShownWord(word.word, word.end) for word in results.words)
        stable = results.tutti.stable_words if results.tutti is not None else None
        self._views.setdefault(path, []).append(View(results.cursor_s, words, stable or 0, results.is_final))

    def stability(self) -> Stability:
        """Return stability figures over all recordings."""
        stability = Stability()
        for views in self._views.values():
            stability.follow(views)
        return stability


async def evaluate(
    utterances: Sequence[Utterance],
    opener: OpenTranscriber,
    concurrency: int,
    *,
    partials: bool = False,
    core_clock: Callable[[], float] | None = None,
) -> Evaluation:
    """Recognize all recordings, `concurrency` at once. Raises: EvaluationFailed naming the first failures.

    One recording is run first without timing, to exclude compilation and loading from the speed. `core_clock`:
    processor time, in seconds, of the process that recognizes; None: it is not known here.
    """
    cores = core_clock or (lambda: 0.0)
    watch = Watch() if partials else None
    files = [u.audio for u in utterances]
    try:
        async with opener() as transcriber:
            await transcribe_files(files[:1], transcriber)
            began_s, busy_s = time.monotonic(), cores()
            outcomes = await transcribe_files(files, transcriber, display=watch, concurrency=concurrency)
            elapsed_s, busy_s = time.monotonic() - began_s, cores() - busy_s
    except ClientError as error:
        raise EvaluationFailed(str(error)) from error
    failed = [o for o in outcomes if isinstance(o, Failed)]
    if failed:
        first = "; ".join(f"{o.path.name}: {o.problem}" for o in failed[:3])
        raise EvaluationFailed(f"{len(failed)} of {len(outcomes)} recordings failed: {first}")
    texts = tuple(o.text for o in outcomes if isinstance(o, Transcribed))
    stability = None if watch is None else watch.stability()
    return Evaluation(utterances, texts, elapsed_s, stability, None if core_clock is None else busy_s)


def remote(url: str, api_key: str | None, query: Mapping[str, Any]) -> OpenTranscriber:
    """Return a function that opens a transcriber of a running server, with these parameters of /v1/listen."""
    transcriber = RemoteTranscriber(url, api_key=api_key, **query)
    return lambda: nullcontext(transcriber)


@asynccontextmanager
async def open_coded(settings: Settings, codec: str, **query: Any) -> AsyncIterator[CodedTranscriber]:
    """Open `open_local` for audio in this codec. Raises: ModelError; NotRecognized; KeyError for an unknown codec."""
    table = TABLES[codec]()
    async with open_local(settings, sample_rate=LINE_RATE, **query) as local:
        yield CodedTranscriber(local, table)


class CodedTranscriber:
    """Encodes and decodes recordings by a telephone codec before recognition; implements the client's `Transcriber`."""

    sample_rate = LINE_RATE

    def __init__(self, local: Transcriber, table: PCM) -> None:
        """`local` takes audio at `LINE_RATE`. `table` has the sample value of each code, (256,) int16."""
        self._local = local
        self._table = table

    def stream(self, pcm: AsyncIterable[bytes]) -> AsyncGenerator[Any, None]:
        """Recognize one recording of int16 mono PCM at `LINE_RATE`. Raises: NotRecognized."""
        return self._local.stream(self._line(pcm))

    async def _line(self, pcm: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
        async for chunk in pcm:
            yield self._table[coded(np.frombuffer(chunk, "<i2"), self._table)].tobytes()


def coded(pcm: PCM, table: PCM) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Return the code with the nearest value for each sample: (S,) int16 -> (S,) uint8. Source: ITU-T G.711."""
    order = np.argsort(table, kind="stable")
    values = table[order].astype(np.int32)
    limits = (values[1:] + values[:-1]) / 2
    return order[np.searchsorted(limits, pcm)].astype(np.uint8)

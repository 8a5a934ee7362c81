"""`tutti evaluate`: a manifest through a recogniser, in this process or behind a URL; word error rates by source.

Both ways take the same steps through the same kind of session, so that their texts must be equal.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from clients.outcome import Failed, Transcribed
from clients.transcribe import transcribe_files
from clients.transcriber import RemoteTranscriber, Transcriber
from model import compare
from model.acoustic import AcousticModel
from model.audio import read_pcm
from model.manifest import Utterance, read_manifests
from model.scoring import by_source, report
from server.local import open_local
from server.settings import Settings

OpenTranscriber = Callable[[], AbstractAsyncContextManager[Transcriber]]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Texts in manifest order, and the seconds that they took."""

    utterances: Sequence[Utterance]
    texts: tuple[str, ...]
    elapsed_s: float

    def figures(self) -> dict[str, object]:
        """JSON-ready: error rates pooled and by source, speed, and a digest of all texts to compare runs by."""
        rows = [(u.source, u.text, text) for u, text in zip(self.utterances, self.texts, strict=True)]
        audio_s = sum(u.duration_s for u in self.utterances)
        return {
            **report(by_source(rows)),
            "audio_s": round(audio_s, 1),
            "elapsed_s": round(self.elapsed_s, 2),
            "real_time_factor": round(self.elapsed_s / audio_s, 5) if audio_s else None,
            "texts_sha256": hashlib.sha256("\n".join(self.texts).encode()).hexdigest(),
        }

    def write_texts(self, path: Path) -> None:
        """One JSON line a recording: audio, source, reference and text."""
        lines = [
            json.dumps({"audio": u.audio.name, "source": u.source, "reference": u.text, "text": text})
            for u, text in zip(self.utterances, self.texts, strict=True)
        ]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


class EvaluationFailed(Exception):
    """Some recordings could not be recognised; figures without them would flatter."""


async def evaluate(utterances: Sequence[Utterance], opener: OpenTranscriber, concurrency: int) -> Evaluation:
    """Recognise every recording, `concurrency` at a time. Raises: EvaluationFailed naming the first failures."""
    async with opener() as transcriber:
        began_s = time.monotonic()
        outcomes = await transcribe_files([u.audio for u in utterances], transcriber, concurrency=concurrency)
        elapsed_s = time.monotonic() - began_s
    failed = [o for o in outcomes if isinstance(o, Failed)]
    if failed:
        first = "; ".join(f"{o.path.name}: {o.problem}" for o in failed[:3])
        raise EvaluationFailed(f"{len(failed)} of {len(outcomes)} recordings failed: {first}")
    texts = tuple(o.text for o in outcomes if isinstance(o, Transcribed))
    return Evaluation(utterances, texts, elapsed_s)


def run_remote(
    manifests: Sequence[Path], url: str, api_key: str | None, concurrency: int, texts: Path | None, *, as_json: bool
) -> int:
    """Evaluate a running server; returns the exit code. Raises: ManifestError."""
    transcriber = RemoteTranscriber(url, api_key=api_key)
    return _run(
        read_manifests(manifests), lambda: nullcontext(transcriber), concurrency, texts, {"url": url}, as_json=as_json
    )


def run_local(
    manifests: Sequence[Path], settings: Settings, concurrency: int, texts: Path | None, *, as_json: bool
) -> int:
    """Evaluate the engine in this process, and compare with fp32; returns the exit code. Raises: ModelError."""
    utterances = read_manifests(manifests)
    model = AcousticModel.load(settings.model, device=settings.device, precision=settings.precision)
    facts: dict[str, object] = {
        "precision": model.precision,
        "device": str(model.device),
        "model": model.config.name,
        "model_version": model.config.version,
        "model_sha256": model.digest,
    }
    if model.precision != "fp32":
        recordings = [read_pcm(u.audio, model.config.sample_rate) for u in utterances]
        gap = compare.difference(settings.model, model.precision, settings.device, recordings)
        facts["log_prob_difference_to_fp32"] = dataclasses.asdict(gap)
    return _run(utterances, lambda: open_local(settings), concurrency, texts, facts, as_json=as_json)


def _run(
    utterances: Sequence[Utterance],
    opener: OpenTranscriber,
    concurrency: int,
    texts: Path | None,
    facts: dict[str, object],
    *,
    as_json: bool,
) -> int:
    try:
        evaluation = asyncio.run(evaluate(utterances, opener, concurrency))
    except EvaluationFailed as error:
        typer.echo(f"evaluate: {error}", err=True)
        return 1
    except KeyboardInterrupt:
        return 130
    if texts is not None:
        evaluation.write_texts(texts)
    figures = {**evaluation.figures(), **facts}
    _print_table(figures, Console(stderr=as_json))
    if as_json:
        typer.echo(json.dumps(figures))
    return 0


def _print_table(figures: dict[str, Any], console: Console) -> None:
    table = Table("source", "utterances", "WER", "CER")
    pooled = {"all": {name: figures[name] for name in ("wer", "cer", "utterances")}}
    for source, row in {**figures["by_source"], **pooled}.items():
        table.add_row(source, str(row["utterances"]), f"{row['wer']:.3f}", f"{row['cer']:.3f}")
    console.print(table)
    rest = {k: v for k, v in figures.items() if k not in ("by_source", "wer", "cer", "utterances")}
    for name, value in rest.items():
        console.print(f"{name}: {value}", highlight=False)

"""Manifests for training a Mandarin network: `python -m tutti_asr_lab.training.mandarin.speech OUT --data DIR`.

A text becomes syllables with tones, which is what the network learns; recordings whose text has Latin letters are left
out. Common Voice has no pinyin: its characters are converted in context. Recordings of held-out speakers go to a
separate manifest; half of them, chosen by file name because most are of one voice, also to one for tuning decoding
weights.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from model.errors import ManifestError, ModelError
from model.text.chinese import characters_of, sentences_of
from model.text.files import read_lines
from tutti_asr_lab.training.lexicon.pinyin import are_syllables, syllables_of

SOURCES = ("aishell_sample", "cmn_words", "cmn_syllables", "mandarin_cv")
HELD_OUT = ("mandarin_dev", "mandarin_cv")
SPLIT = "mandarin_cv"  # source whose speakers are divided into training and held-out ones

Row = dict[str, Any]


def is_held_out(speaker: str) -> bool:
    """Whether a speaker of the divided source is among the tenth that is held out."""
    return int(hashlib.sha1(speaker.encode(), usedforsecurity=False).hexdigest(), 16) % 10 == 0


def rows_of(data: Path, source: str) -> Iterator[Row]:
    """Rows of a manifest. Raises: ManifestError."""
    path = data / f"{source}.jsonl"
    try:
        for line in read_lines(path, ManifestError):
            yield json.loads(line)
    except ValueError as error:
        raise ManifestError(f"cannot read manifest {path}: {error}") from error


def syllables_said(row: Row) -> tuple[str, ...]:
    """Syllables of a recording, () if its text has something else."""
    said = tuple(str(row.get("pinyin", "")).split())
    if not said:
        said = syllables_of("".join(sentences_of(row["text"])))
    return said if are_syllables(said) else ()


def write(data: Path, out: Path) -> dict[str, int]:
    """Write `train-SOURCE.jsonl`, with syllables as texts, and `dev.jsonl`, with characters; return their lengths."""
    out.mkdir(parents=True, exist_ok=True)
    counts = {}
    for source in SOURCES:
        rows = [row for row in rows_of(data, source) if source != SPLIT or not is_held_out(row["speaker"])]
        kept = [_row(data, row, " ".join(said)) for row in rows if (said := syllables_said(row))]
        counts[f"train-{source}"] = _write(out / f"train-{source}.jsonl", kept)
    held_out = [
        (source, row)
        for source in HELD_OUT
        for row in rows_of(data, source)
        if source != SPLIT or is_held_out(row["speaker"])
    ]
    named = [_row(data, row, characters_of(row["text"])) | {"source": _name(source, row)} for source, row in held_out]
    counts["dev"] = _write(out / "dev.jsonl", named)
    half = [row for row in named if row["text"].isalpha() and not row["text"].isascii()]  # without Latin letters
    half = [row for row in half if zlib.crc32(Path(row["audio"]).name.encode()) % 2]
    counts["dev-tuned"] = _write(out / "dev-tuned.jsonl", half)
    spoken = [
        _row(data, row, " ".join(said)) | {"source": _name(source, row)}
        for source, row in held_out
        if (said := syllables_said(row))
    ]
    counts["dev-syllables"] = _write(out / "dev-syllables.jsonl", spoken)
    return counts


def _name(source: str, row: Row) -> str:
    """Source of a held-out recording, by the kind of its text if known."""
    return f"zh_{row['kind']}" if "kind" in row else source


def _row(data: Path, row: Row, text: str) -> Row:
    return {**row, "audio": str((data / row["audio"]).resolve()), "text": text, "characters": row["text"]}


def _write(path: Path, rows: list[Row]) -> int:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return len(rows)


def main() -> None:
    """Write the manifests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of the manifests")
    parser.add_argument("--data", type=Path, required=True, help="folder with the sources' manifests")
    options = parser.parse_args()
    try:
        counts = write(options.data, options.out)
    except (ModelError, OSError) as error:
        sys.exit(f"error: {error}")
    for name, count in counts.items():
        print(f"{name}: {count:,} recordings")  # noqa: T201


if __name__ == "__main__":
    main()

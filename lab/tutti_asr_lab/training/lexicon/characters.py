"""Builds a lexicon of Chinese characters: `python -m tutti_asr_lab.training.lexicon.characters --lm PATH --out PATH`.

Each character of the language model gets all of its readings; homophones share a node of the phone trie, and the
language model chooses among them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from model.errors import LexiconError, ModelError
from model.lexicon.lexicon import Pronunciations, write_lexicon
from model.lm.language_model import LanguageModel
from tutti_asr_lab.training.lexicon.pinyin import phones_of, readings


def build(lm: Path, out: Path) -> int:
    """Write the lexicon; return its number of characters. Raises: LanguageModelError, LexiconError."""
    words: dict[str, Pronunciations] = {
        word: spoken for word in LanguageModel.load(lm).words if len(word) == 1 and (spoken := _spoken(word))
    }
    if not words:
        raise LexiconError(f"{lm} has no Chinese characters")
    phones = {phone for spoken in words.values() for each in spoken for phone in each}
    write_lexicon(out, phones, words)
    return len(words)


def _spoken(character: str) -> Pronunciations:
    return tuple(phones_of(reading) for reading in readings(character))


def main() -> None:
    """Build the lexicon."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lm", type=Path, required=True, help=".arpa, .arpa.gz or .lm model of characters")
    parser.add_argument("--out", type=Path, required=True, help="NAME.lexicon.gz; found if it is next to the model")
    options = parser.parse_args()
    try:
        count = build(options.lm, options.out)
    except (ModelError, OSError) as error:
        sys.exit(f"error: {error}")
    print(f"wrote {options.out}: {count:,} characters")  # noqa: T201


if __name__ == "__main__":
    main()

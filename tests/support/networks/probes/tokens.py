"""The tokens.txt of a probe: invented symbols in the six styles of published models, one per line.

`style` is "bpe" (pieces, `▁` begins a word), "characters", "bytes" (pieces and all of `<0x00>` to `<0xFF>`), "byte-bpe"
(icefall's: bytes of UTF-8 as letters from U+0100 on), "chinese" (single characters) or "written" (pieces, half of them
with a capital, punctuation marks, and tags of languages).
"""

from __future__ import annotations

import unicodedata

import numpy as np

SYLLABLES = [first + second for first in "bdfghklmnprstvw" for second in ("a", "e", "i", "o", "u", "an", "er", "ing")]
LETTERS = "abcdefghijklmnopqrstuvwxyz'абвгдежзийклмнопрстуфхцчшщъыьэюяё"
CHINESE = [chr(0x4E00 + 7 * place) for place in range(2900)]
MARKS, TAGS = (".", ",", "?"), ("<en-US>", "<de-DE>", "<ja>")
SPACES = {"line": "", "|": "|"}  # a line with only a number is the space; some files have "|" instead


def special_symbols(kind, style):
    """Return the symbols before the ordinary ones, including the blank, and the symbols after them."""
    if kind.startswith("nemo"):
        return ["<unk>"], ["<blk>"]
    if kind == "t-one-ctc":
        return [], ["<blk>"]
    return (["<blk>"] if style == "characters" else ["<blk>", "<sos/eos>", "<unk>"]), []


def symbols(kind, style, vocabulary, seed, space="line"):
    """Return the symbols (V strings) in the order of their ids; "" for the space of a line without symbol."""
    before, after = special_symbols(kind, style)
    count = vocabulary - len(before) - len(after)
    random = np.random.default_rng(seed)
    ordinary = {
        "bpe": pieces,
        "characters": lambda count, _: [SPACES[space], *LETTERS[: count - 1]],
        "bytes": lambda count, random: [*(f"<0x{byte:02X}>" for byte in range(256)), *pieces(count - 256, random)],
        "byte-bpe": byte_pieces,
        "chinese": lambda count, _: CHINESE[:count],
        "written": written_pieces,
    }[style](count, random)
    if len(ordinary) != count:
        raise ValueError(f"style {style} does not have {vocabulary} different symbols")
    return [*before, *ordinary, *after]


def blank_of(names):
    return names.index("<blk>")


def write_tokens(path, names):
    path.write_text("".join(f"{name} {place}\n".lstrip() for place, name in enumerate(names)), encoding="utf-8")


def distinct(draw, count):
    """Return the first `count` different results of `draw`."""
    found = {}
    while len(found) < count:
        found.setdefault(draw())
    return list(found)


def pieces(count, random):
    """Pieces of one to three syllables; `▁` alone, half of the others after `▁`."""

    def draw():
        syllables = "".join(random.choice(SYLLABLES, random.integers(1, 4)))
        return "▁" * int(random.integers(2)) + syllables

    return ["▁", *distinct(draw, count - 1)] if count > 0 else []


def written_pieces(count, random):
    """Pieces in the writing of a model of many languages: every other one has a capital."""
    names = [name.replace("▁", "▁ ").title().replace(" ", "") if at % 2 else name
             for at, name in enumerate(pieces(count - len(MARKS) - len(TAGS), random))]  # fmt: skip
    return [*names, *MARKS, *TAGS]


def byte_letters():
    """Return the letters for the 256 bytes: printable ASCII for itself, the others from U+0100 on without ligatures."""
    letters, code = [], 0x100
    for byte in range(256):
        if 32 <= byte < 127:
            letters.append(chr(byte))
            continue
        while unicodedata.normalize("NFKC", chr(code)) != chr(code):
            code += 1
        letters.append(chr(code))
        code += 1
    return letters


def byte_pieces(count, random):
    """Single bytes of Chinese and English text, and runs of two to six of them that may cut a character."""
    letters = byte_letters()
    text = "".join(random.choice(CHINESE, 400)) + "".join(random.choice(SYLLABLES, 200))
    encoded = "".join(letters[byte] for byte in text.encode())
    needed = letters[0xC6 - 1] + letters[255]  # a rare byte whose letter identifies the file as byte-BPE

    def draw():
        start, length = random.integers(len(encoded) - 6), random.integers(1, 7)
        return "▁" * int(random.integers(4) == 0) + encoded[start : start + length]

    return ["▁", needed, *distinct(draw, count - 2)]

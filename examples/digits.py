"""Small noisy images of one to three digits, drawn in fonts that matplotlib ships, and the words of each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

WORDS = ("", "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
END = 0  # the word at the end of a caption, and the one before its first
LONGEST = 3  # digits
HEIGHT, CELL = 16, 16  # pixels; each digit has its cell
PIXELS = HEIGHT * CELL * LONGEST

FONTS = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSerif"),
    *("DejaVuSerif-Italic", "STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "cmss10", "cmtt10", "cmb10"),
)
UNSEEN = ("DejaVuSerif-Bold", "DejaVuSansMono-Oblique")  # fonts that the network does not learn from
SIZES = (13, 14, 15)  # pixels of an em

Image = NDArray[np.uint8]


def glyphs(fonts: Sequence[str]) -> list[list[Image]]:
    """Images of each of the ten digits in these fonts, at three sizes."""
    import matplotlib as mpl
    from matplotlib.ft2font import FT2Font

    folder = Path(mpl.get_data_path()) / "fonts" / "ttf"
    drawn: list[list[Image]] = [[] for _ in range(10)]
    for name in fonts:
        for size in SIZES:
            for digit, images in enumerate(drawn):
                font = FT2Font(folder / f"{name}.ttf")
                font.set_size(size, 72)
                font.set_text(str(digit))
                font.draw_glyphs_to_bitmap()
                images.append(np.array(font.get_image())[:HEIGHT, :CELL])
    return drawn


def examples(dice: np.random.Generator, count: int, drawn: list[list[Image]]) -> tuple[Image, NDArray[np.int64]]:
    """Images (count, PIXELS) of one to three digits, and their words (count, LONGEST + 1), END after the last."""
    images = dice.integers(0, 60, (count, HEIGHT, CELL * LONGEST), np.uint8)
    words = np.full((count, LONGEST + 1), END)
    for image, caption in zip(images, words, strict=True):
        for place in range(dice.integers(1, LONGEST + 1)):
            digit = int(dice.integers(10))
            _draw(dice, drawn[digit][dice.integers(len(drawn[digit]))], image[:, CELL * place : CELL * (place + 1)])
            caption[place] = 1 + digit
    return images.reshape(count, PIXELS), words


def cells(images: Image) -> NDArray[np.float32]:
    """Brightness within 0 … 1 of the cells of images (B, PIXELS): (B * LONGEST, HEIGHT * CELL)."""
    apart = images.reshape(-1, HEIGHT, LONGEST, CELL).swapaxes(1, 2)  # (B, LONGEST, HEIGHT, CELL)
    return apart.reshape(-1, HEIGHT * CELL).astype(np.float32) / np.float32(255)


def text(words: Sequence[int]) -> str:
    """Caption of word numbers."""
    return " ".join(WORDS[word] for word in words if word != END)


def _draw(dice: np.random.Generator, glyph: Image, cell: Image) -> None:
    """Draw a glyph at most one pixel from the middle of its cell, which is a view of the image."""
    free = np.array(cell.shape) - glyph.shape
    top, left = np.clip(free // 2 + dice.integers(-1, 2, 2), 0, free)
    part = cell[top : top + glyph.shape[0], left : left + glyph.shape[1]]
    np.maximum(part, glyph, out=part)

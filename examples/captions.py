"""Captions of small images by an encoder and an LSTM: a word a step, and users join at any step of the others.

A client posts the 16 x 48 bytes of a gray image with one to three digits to /captions. In one batch some rows are at
their first step, where the encoder turns the image into the state, and others at later words. The network learns from
images drawn in fonts that matplotlib ships.

    python -m examples.captions --demo
"""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import typer
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from numpy.typing import NDArray

from batching import BatchingError
from examples.network import Arrays, Floats, Product, Slots, cached, lstm, one_thread, quantized
from examples.serving import Deadline, Serving, run

USERS, LARGEST_BATCH = 256, 64
HIDDEN = 128
UPDATES, IMAGES = 1500, 128

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
        for column in range(dice.integers(1, LONGEST + 1)):
            digit = int(dice.integers(10))
            _draw(dice, drawn[digit][dice.integers(len(drawn[digit]))], image[:, CELL * column : CELL * (column + 1)])
            caption[column] = 1 + digit
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


@one_thread()
def train(updates: int = UPDATES) -> Arrays:
    """Weights after this many updates in torch; after 0 the random ones."""
    import torch
    from torch import nn

    torch.manual_seed(1)
    dice, drawn = np.random.default_rng(1), glyphs(FONTS)
    first, second = nn.Linear(PIXELS // LONGEST, HIDDEN), nn.Linear(LONGEST * HIDDEN, HIDDEN)
    recurrent, head = nn.LSTM(len(WORDS), HIDDEN, batch_first=True), nn.Linear(HIDDEN, len(WORDS))
    network = nn.ModuleDict({"first": first, "second": second, "lstm": recurrent, "head": head})
    optimizer = torch.optim.Adam(network.parameters(), 2e-3)
    for _ in range(updates):
        images, captions = examples(dice, IMAGES, drawn)
        parts, words = first(torch.from_numpy(cells(images))).tanh(), torch.from_numpy(captions)
        state = second(parts.reshape(IMAGES, -1)).tanh()[None]  # (1, IMAGES, HIDDEN)
        before = nn.functional.one_hot(nn.functional.pad(words[:, :-1], (1, 0), value=END), len(WORDS)).float()
        outputs, _ = recurrent(before, (state, state))  # (IMAGES, LONGEST + 1, HIDDEN)
        loss = nn.functional.cross_entropy(head(outputs).flatten(0, 1), words.flatten())
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    return {name: weights.detach().numpy() for name, weights in network.state_dict().items()}


class Captioner:
    """The next word of each image's caption."""

    def __init__(self, arrays: Arrays) -> None:
        """Round the weights of `train` to 8 bits, but not those of the last word, which are rows of a table."""
        self._first, self._second, self._head = (
            Product.of(arrays[f"{name}.weight"], arrays[f"{name}.bias"]) for name in ("first", "second", "head")
        )
        self._recurrent = Product.of(arrays["lstm.weight_hh_l0"], arrays["lstm.bias_hh_l0"])
        table = arrays["lstm.weight_ih_l0"].T + arrays["lstm.bias_ih_l0"]
        self._words: Floats = np.ascontiguousarray(table)  # (words, 4 HIDDEN)

    def step(self, inputs: NDArray[Any], states: Floats) -> tuple[NDArray[np.int64], Floats]:
        """(B, 1 + PIXELS) last word and image, (B, 2 HIDDEN) -> next word (B,), (B, 2 HIDDEN)."""
        words, (hidden, cell) = inputs[:, 0], np.split(states, 2, axis=1)
        new = words == END  # rows at their first step
        parts = np.tanh(self._first(quantized(cells(inputs[new, 1:])))).reshape(-1, LONGEST * HIDDEN)
        hidden[new] = cell[new] = np.tanh(self._second(quantized(parts)))
        hidden, cell = lstm(self._words[words] + self._recurrent(quantized(hidden)), cell)
        return self._head(quantized(hidden)).argmax(axis=1), np.concatenate([hidden, cell], axis=1)

    def slots(self, capacity: int = USERS, largest: int = LARGEST_BATCH) -> Slots:
        """States for this many images."""
        shape = (1 + PIXELS,)
        return Slots(self.step, state=2 * HIDDEN, inputs=shape, dtype=np.uint8, capacity=capacity, largest=largest)


async def caption(serving: Serving, image: bytes, deadline_ms: float) -> tuple[str, bool]:
    """Words of an image, and whether one was late: each has an equal part of the time. Raises: BatchingError."""
    stream = serving.open(deadline_ms / (LONGEST + 1))
    words: list[int] = []
    late = False
    try:
        row = np.frombuffer(bytes([END]) + image, np.uint8)
        while len(words) <= LONGEST:
            answer = await stream.step(row)
            late |= answer.late
            words.append(int(answer.output))
            if words[-1] == END:
                break
            row = np.frombuffer(bytes([words[-1]]) + bytes(PIXELS), np.uint8)
    finally:
        stream.close()
    return text(words), late


def application(captioner: Captioner | None = None, users: int = USERS) -> FastAPI:
    """Serve this many images at a time; by default with weights that are trained at the first start."""
    model = captioner or Captioner(cached("captions", train))
    serving = Serving(model.slots(users))
    app = FastAPI(title="captions", lifespan=serving.running)

    @app.post("/captions")
    async def captions(request: Request, deadline_ms: Deadline = 200) -> JSONResponse:
        image = bytearray()
        async for part in request.stream():
            image += part
            if len(image) > PIXELS:
                break
        if len(image) != PIXELS:
            return JSONResponse({"error": f"body: {PIXELS} bytes are required, one per pixel, row by row"}, 400)
        try:
            words, late = await caption(serving, bytes(image), deadline_ms)
        except BatchingError as error:
            return JSONResponse({"error": str(error)}, 503)
        return JSONResponse({"caption": words, "late": late, "largest_batch": serving.largest_batch})

    return app


def post(port: int, image: Image) -> dict[str, Any]:
    """Answer of the server on this port."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("POST", "/captions", image.tobytes())
    answer: dict[str, Any] = json.loads(connection.getresponse().read())
    connection.close()
    return answer


async def client(port: int) -> None:
    """Post 200 images in fonts that the network has not seen; print the captions of the first ones, and the errors."""
    images, words = examples(np.random.default_rng(9), 200, glyphs(UNSEEN))
    answers = await asyncio.gather(*(asyncio.to_thread(post, port, image) for image in images))
    pairs = [(answer["caption"], text(list(caption))) for answer, caption in zip(answers, words, strict=True)]
    for recognized, drawn in pairs[:5]:
        typer.echo(f"drawn: {drawn:<20} caption: {recognized}")
    wrong, largest = sum(recognized != drawn for recognized, drawn in pairs), answers[-1]["largest_batch"]
    typer.echo(f"{len(pairs)} captions, {wrong} wrong; up to {largest} users in a batch")


if __name__ == "__main__":
    run(application, client)

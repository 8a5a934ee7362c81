"""Typing suggestions by a recurrent language model: words that may come next, one stream per user.

A client opens the WebSocket /type and sends characters as they are typed; each message is answered by the likeliest
words that begin with the letters of the unfinished one, a rare word by its first piece. A finished word advances the
user's state by its word pieces.

    python -m examples.typing_suggestions --demo
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import typer
from fastapi import FastAPI, WebSocket
from numpy.typing import NDArray
from safetensors.numpy import load_file
from websockets.asyncio.client import connect

from examples.network import Floats, Product, Slots, gru, quantized
from examples.serving import Answer, Deadline, Serving, Stream, accepted, run

SHIPPED = Path(__file__).with_name("weights") / "tutti-sentences.safetensors"
USERS, LARGEST_BATCH = 1000, 64
SUGGESTIONS = 3
LONGEST_MESSAGE = 100  # characters
SENTENCE_ENDS = ".?!"
END = 0
"""Piece for the end of a sentence; also the context before the first piece of a sentence."""
BEGIN_MARK = "_"
"""First character of a piece that begins a word."""
LETTERS = "abcdefghijklmnopqrstuvwxyz'"


class Pieces:
    """Inventory of word pieces, END first, and greedy splitting of words: there are no unknown words."""

    def __init__(self, symbols: Sequence[str]) -> None:
        """Take pieces in the order of their ids. Raises: ValueError if a piece is missing or is there twice.

        END is required, and each letter both as the first of a word and inside one.
        """
        self.symbols = tuple(symbols)
        self._numbers = {symbol: number for number, symbol in enumerate(self.symbols)}
        needed = ["", *LETTERS, *(BEGIN_MARK + letter for letter in LETTERS)]
        if (
            self.symbols[:1] != ("",)
            or len(self._numbers) != len(self.symbols)
            or not self._numbers.keys() >= set(needed)
        ):
            raise ValueError("the word pieces lack a letter, or contain a duplicate")
        self._longest = max(len(symbol) for symbol in self.symbols)

    def __len__(self) -> int:
        return len(self.symbols)

    def of(self, word: str) -> Iterator[int]:
        """Pieces of a word: at each position the longest that matches. Characters outside `LETTERS` are ignored."""
        rest = BEGIN_MARK + "".join(letter for letter in word if letter in LETTERS)
        while len(rest.lstrip(BEGIN_MARK)):
            length = min(len(rest), self._longest)
            while rest[:length] not in self._numbers:
                length -= 1
            yield self._numbers[rest[:length]]
            rest = rest[length:]


class LanguageModel:
    """Scores of the next word piece, from the pieces before it."""

    def __init__(self, path: Path = SHIPPED) -> None:
        """Read `path`, and the word pieces from the .json file next to it."""
        arrays = load_file(path)
        self.pieces = Pieces(json.loads(path.with_suffix(".json").read_bytes())["pieces"])
        table = arrays["table"] * arrays["table_scale"] + arrays["table_bias"]
        self._table: Floats = table.astype(np.float32)  # (pieces, 3 H): the input's product, by piece
        self._recurrent, self._head = (
            Product(arrays[name], arrays[f"{name}_scale"], arrays[f"{name}_bias"]) for name in ("recurrent", "head")
        )
        self._hidden = arrays["head"].shape[1]

    def step(self, inputs: NDArray[Any], hidden: Floats) -> tuple[Floats, Floats]:
        """(B, 1) piece ids, (B, H) -> scores of the next piece (B, pieces), (B, H)."""
        after = gru(self._table[inputs[:, 0]], self._recurrent(quantized(hidden)), hidden)
        return self._head(quantized(after)), after

    def slots(self, capacity: int = USERS, largest: int = LARGEST_BATCH) -> Slots:
        """States for this many users."""
        return Slots(self.step, state=self._hidden, inputs=(1,), dtype=np.int32, capacity=capacity, largest=largest)


class Typing:
    """One user's text: the letters of the unfinished word, and the scores of what may follow the finished ones."""

    def __init__(self, pieces: Pieces, stream: Stream) -> None:
        self._pieces, self._stream = pieces, stream
        self._letters = ""
        self._answer: Answer | None = None

    async def start(self) -> None:
        """Begin a sentence. Raises: BatchingError."""
        self._answer = await self._stream.step(np.array([END], np.int32), reset=True)

    async def type(self, text: str) -> dict[str, object]:
        """Take characters; return the suggestions and whether a step of them was late. Raises: BatchingError."""
        if len(text) > LONGEST_MESSAGE:
            return {"error": f"{len(text)} characters in a message, the most are {LONGEST_MESSAGE}: send it in parts"}
        late = False
        for character in text.lower():
            if character in LETTERS:
                self._letters += character
                continue
            word, self._letters = self._letters, ""
            for piece in self._pieces.of(word):
                self._answer = await self._stream.step(np.array([piece], np.int32))
                late |= self._answer.late
            if character in SENTENCE_ENDS:
                await self.start()
        assert self._answer is not None, "`start` comes first"
        return {"suggestions": self._likeliest(self._answer.output), "late": late}

    def _likeliest(self, scores: Floats) -> list[str]:
        """Words of one piece that continue the unfinished word, likeliest first."""
        begun = BEGIN_MARK + self._letters
        likeliest: list[str] = []
        for number in np.argsort(-scores, kind="stable"):
            piece = self._pieces.symbols[number]
            if piece.startswith(begun) and len(piece) > max(len(begun), len(BEGIN_MARK) + 1):
                likeliest.append(piece.removeprefix(BEGIN_MARK))
                if len(likeliest) == SUGGESTIONS:
                    break
        return likeliest


def application(model: LanguageModel | None = None, users: int = USERS) -> FastAPI:
    """Serve this many users at a time; by default with the shipped model."""
    shipped = model or LanguageModel()
    serving = Serving(shipped.slots(users))
    app = FastAPI(title="typing suggestions", lifespan=serving.running)

    @app.websocket("/type")
    async def suggest(connection: WebSocket, deadline_ms: Deadline = 50) -> None:
        async with accepted(connection):
            stream = serving.open(deadline_ms)
            try:
                typing = Typing(shipped.pieces, stream)
                await typing.start()
                while True:
                    await connection.send_json(await typing.type(await connection.receive_text()))
            finally:
                stream.close()

    return app


async def client(port: int) -> None:
    """Print what one user is offered while 30 others type."""
    address = f"ws://127.0.0.1:{port}/type"

    async def write(text: str, *, show: bool) -> None:
        async with connect(address, proxy=None) as connection:
            for end, character in enumerate(text, 1):
                await connection.send(character)
                offered = ", ".join(json.loads(await connection.recv())["suggestions"])
                if show:
                    typer.echo(f"{text[:end]:<30} {offered}")

    texts = ["good morning. how are you", *["i would like a cup of tea, and then we can go home."] * 30]
    await asyncio.gather(*(write(text, show=not number) for number, text in enumerate(texts)))


if __name__ == "__main__":
    run(application, client)

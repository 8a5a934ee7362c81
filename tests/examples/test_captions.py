"""Captions: users join at any step and batched equals alone; what a client gets; most images are read when trained."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from starlette.testclient import TestClient

from examples.captions import (
    END,
    FONTS,
    LONGEST,
    PIXELS,
    UNSEEN,
    WORDS,
    Captioner,
    application,
    caption,
    examples,
    glyphs,
    text,
    train,
)
from examples.serving import Serving
from tests.support.networks.example_models import captioner
from tests.support.streams.random_joins import alone, together

IMAGES, CAPTIONS = examples(np.random.default_rng(3), 30, glyphs(FONTS))


def test_batched_equals_alone_with_random_joins() -> None:
    """Each batch may hold first steps, which the encoder begins, and later words."""
    dice = np.random.default_rng(4)
    sequences = []
    for image in IMAGES:
        rows = np.zeros((dice.integers(1, LONGEST + 2), 1 + PIXELS), np.uint8)
        rows[0, 1:], rows[1:, 0] = image, dice.integers(1, len(WORDS), len(rows) - 1)
        sequences.append(rows)
    found = together(captioner().slots(8, 6), sequences, seed=6)
    for rows, outputs in zip(sequences, found, strict=True):
        assert np.array_equal(outputs, alone(captioner().slots(1, 1), rows))


def test_captions_at_once_are_those_of_each_image_alone() -> None:
    async def captions(size: int) -> list[str]:
        serving = Serving(captioner().slots())
        async with serving.running():
            found = []
            for i in range(0, len(IMAGES), size):
                parts = IMAGES[i : i + size]
                found += await asyncio.gather(*(caption(serving, image.tobytes(), 40_000) for image in parts))
        assert serving.largest_batch == 1 or size > 1
        assert not any(late for _, late in found)
        return [words for words, _ in found]

    assert asyncio.run(captions(len(IMAGES))) == asyncio.run(captions(1))


def test_an_image_of_another_size_is_refused() -> None:
    with TestClient(application(captioner())) as client:
        for size in (0, PIXELS - 1, PIXELS + 1, 10 * PIXELS):
            answer = client.post("/captions", content=bytes(size))
            assert answer.status_code == 400
            assert answer.json() == {"error": "body: 768 bytes are required, one per pixel, row by row"}
        answer = client.post("/captions?deadline_ms=10000", content=IMAGES[0].tobytes())
        assert answer.status_code == 200
        assert set(answer.json()) == {"caption", "late", "largest_batch"}
        assert client.post("/captions?deadline_ms=-1", content=IMAGES[0].tobytes()).status_code == 422


def test_a_server_without_room_says_so() -> None:
    model = captioner()

    async def both() -> list[object]:
        serving = Serving(model.slots(1))
        async with serving.running():
            blocked = serving.open(10_000)
            results = await asyncio.gather(caption(serving, bytes(PIXELS), 100), return_exceptions=True)
            blocked.close()
        return list(results)

    assert str(asyncio.run(both())[0]) == "all 1 slots are in use"


def test_images_have_one_to_three_digits_each_in_its_cell() -> None:
    assert {(row != END).sum() for row in CAPTIONS} == {1, 2, 3}
    cells = IMAGES.reshape(-1, 16, LONGEST, 16).max(axis=(1, 3)) > 100  # (images, LONGEST): something is drawn
    assert np.array_equal(cells, CAPTIONS[:, :LONGEST] != END)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_trained_network_reads_most_images_in_unseen_fonts() -> None:
    images, captions = examples(np.random.default_rng(9), 200, glyphs(UNSEEN))
    model = Captioner(train())

    async def read() -> list[str]:
        serving = Serving(model.slots())
        async with serving.running():
            found = await asyncio.gather(*(caption(serving, image.tobytes(), 10_000) for image in images))
        return [words for words, _ in found]

    right = [found == text(list(words)) for found, words in zip(asyncio.run(read()), captions, strict=True)]
    assert np.mean(right) > 0.85

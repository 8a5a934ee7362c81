"""A language by stream: the symbols of sherpa-onnx for each, alone and in a batch, changed between two steps."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from model.errors import PublishedModelError
from model.prompts import Prompts
from model.published.contracts import nemo
from model.published.graphs.metadata import Graph
from model.recordings import read_pcm
from tests.support.audio.speech import ROOT
from tests.support.needs import need_package
from tests.support.networks.probes.fastconformer import LANGUAGES
from tests.support.networks.published import model_of, padded, reference, shown, symbols_of

CHOSEN = ("en-US", "en-GB", "de-DE", "ja-JP", "pt-PT")
VARIANT = "nemotron-languages"


@cache
def pcm() -> NDArray[np.int16]:
    return read_pcm(ROOT / "model" / "samples" / "account_number.flac", 16_000)


def run(numbers: list[list[int]], slots: Any = None, streams: list[int] | None = None) -> list[Any]:
    """Return each row's outputs.

    `numbers`: by row and step, 1 + the number of the language, or 0; the last one is repeated.
    """
    model = model_of(VARIANT)
    slots = slots or model.slots(capacity=8, largest=8)
    streams = streams or list(range(len(numbers)))
    for stream in streams:
        slots.reset(stream)
    found = []
    for at, step in enumerate(padded(model.config, pcm())):
        for row, chosen in enumerate(numbers):
            slots.inputs[row, : len(step)] = step
            slots.inputs[row, len(step)] = chosen[min(at, len(chosen) - 1)]
        found.append(slots.run(streams))
    return list(np.stack(found, axis=1).reshape(len(numbers), -1, *found[0].shape[2:]))


def symbols(outputs: Any) -> list[str]:
    model = model_of(VARIANT)
    return shown(model, symbols_of(model, outputs[model.config.delay_frames :])[0])


def test_each_language_has_the_symbols_of_sherpa_onnx_alone_and_in_one_batch() -> None:
    need_package("sherpa_onnx")
    expected = [reference(VARIANT, pcm(), language=language)[0] for language in CHOSEN]
    assert len({tuple(each) for each in expected}) == len(CHOSEN)
    assert min(map(len, expected)) > 20
    together = run([[1 + LANGUAGES[language]] for language in CHOSEN])
    assert [symbols(each) for each in together] == expected
    for language, outputs in zip(CHOSEN, together, strict=True):
        alone = run([[1 + LANGUAGES[language]]], streams=[7])
        assert alone[0].tobytes() == outputs.tobytes()


def test_without_a_choice_and_with_one_that_is_none_the_model_finds_the_language() -> None:
    outputs = run([[1 + LANGUAGES["auto"]], [0], [999], [-1]])
    assert len({each.tobytes() for each in outputs}) == 1
    assert outputs[0].tobytes() != run([[1]])[0].tobytes()


def test_a_change_counts_from_its_step_on() -> None:
    first, second = 1 + LANGUAGES["en-US"], 1 + LANGUAGES["ja-JP"]
    changed, before, after = run([[first] * 8 + [second], [first], [second]])
    frames = 8 * model_of(VARIANT).config.frames_per_step
    assert changed[:frames].tobytes() == before[:frames].tobytes()
    assert changed[frames:].tobytes() == after[frames:].tobytes() != before[frames:].tobytes()


@pytest.mark.parametrize(
    ("language", "number"),
    [
        ("en-US", 0),
        ("EN_gb", 1),
        ("en", 0),  # the first
        ("en-AU", 0),
        ("ja", 4),
        ("pt-pt", 6),
        ("auto", None),
        ("fr", None),
        ("", None),
    ],
)
def test_a_tag_stands_for_its_language_or_the_first_with_its_base(language: str, number: int | None) -> None:
    prompts = model_of(VARIANT).facts.prompts
    assert prompts is not None
    assert prompts.number_of(language) == number


def test_a_base_language_with_a_number_of_its_own_is_found_and_not_shown_twice() -> None:
    prompts = Prompts.read(json.dumps({"auto": 9, "en": 0, "en-US": 0, "de-DE": 3, "de": 2, "x_": 7}), None)
    assert [prompts.number_of(tag) for tag in ("en-NZ", "de", "de-AT")] == [0, 2, 2]
    assert prompts.languages == ("en-US", "de-DE", "de")
    assert (prompts.automatic, prompts.count) == (9, 10)


@pytest.mark.parametrize(
    ("dictionary", "automatic", "reason"),
    [
        (None, "9", "has no 'prompt_dictionary' in its metadata"),
        ("[]", "9", "it is no object of languages and their numbers"),
        ('{"en": -1}', "9", "it is no object of languages and their numbers"),
        ("{", "9", "'prompt_dictionary' in the metadata: Expecting"),
        ('{"en": 1}', None, "it has no 'auto', and 'auto_prompt_id' is missing"),
    ],
)
def test_a_damaged_dictionary_is_named(dictionary: str | None, automatic: str | None, reason: str) -> None:
    graph = model_of(VARIANT).graph
    given = {"prompt_dictionary": dictionary, "auto_prompt_id": automatic}
    metadata = {key: value for key, value in {**graph.metadata, **given}.items() if value is not None}
    with pytest.raises(PublishedModelError, match=reason):
        nemo(Graph(graph.path, None, metadata, graph.inputs, graph.outputs))


def test_the_graph_without_a_compiled_step_gives_the_same_symbols() -> None:
    model = model_of(VARIANT)
    published = type(model).load(model.files.folder, device="cpu", rewriting="off")
    assert (model.compiled is not None, published.compiled) == (True, None)
    numbers = [[1 + LANGUAGES[language]] for language in CHOSEN[:3]]
    graph = run(numbers, published.slots(capacity=8, largest=8))
    assert [symbols(each) for each in graph] == [symbols(each) for each in run(numbers)]

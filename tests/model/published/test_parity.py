"""Published models give the symbols and times of sherpa-onnx, alone, in batches, and after a move of the stream."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.support.needs import need_package
from tests.support.networks.published import (
    VARIANTS,
    at_rate,
    model_of,
    padded,
    recognize,
    reference,
    shown,
    symbols_of,
)

SAMPLES = Path(__file__).parents[3] / "model" / "samples"


@pytest.fixture(autouse=True)
def sherpa():
    need_package("sherpa_onnx")


@cache
def recordings():
    return [soundfile.read(SAMPLES / name, dtype="int16")[0] for name in ("account_number.flac", "demo.flac")]


def check(variant, utterances):
    model = model_of(variant)
    utterances = [at_rate(model, pcm) for pcm in utterances]
    count = 0
    for pcm, (symbols, frames) in zip(utterances, recognize(model, utterances), strict=True):
        tokens, times = reference(variant, pcm)
        assert shown(model, symbols) == tokens
        written = [at for symbol, at in zip(symbols, frames, strict=True) if shown(model, [symbol])]
        timed = frames if len(times) == len(symbols) else written  # it may give a time to symbols that it does not show
        assert np.allclose(np.array(timed) * model.config.frame_s, times[: len(timed)], atol=1e-3)
        count += len(tokens)
    assert count > 3 * len(utterances), "too few symbols for a meaningful comparison"


@pytest.mark.parametrize("variant", VARIANTS)
def test_symbols_and_times_are_those_of_sherpa_onnx(variant: str) -> None:
    check(variant, recordings())


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_recording_of_any_length_ends_with_the_windows_that_sherpa_onnx_decodes(variant: str) -> None:
    model = model_of(variant)
    dice = random.Random(5)
    pcm = at_rate(model, recordings()[0])
    utterances = [pcm[:length] for length in (1, 79, 80, 120, 4_000, *dice.sample(range(5_000, len(pcm)), 8))]
    for part, (symbols, _) in zip(utterances, recognize(model, utterances), strict=True):
        assert shown(model, symbols) == reference(variant, part)[0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_streams_that_come_and_go_and_move_to_another_replica_have_the_symbols_that_they_have_alone(
    variant: str,
) -> None:
    """32 streams in two sets of slots: in each round some streams run a step, and some are moved."""
    model = model_of(variant)
    config, dice = model.config, random.Random(3)
    pcm = np.concatenate([at_rate(model, each) for each in recordings()])
    starts = [dice.randrange(len(pcm) // 2) for _ in range(32)]
    utterances = [pcm[start : start + dice.randrange(8_000, 30_000)] for start in starts]
    alone = recognize(model, utterances)
    replicas = [model.slots(capacity=12, largest=8) for _ in range(2)]
    free = [[*range(12)], [*range(12)]]
    steps = [padded(config, each) for each in utterances]
    waiting, open_streams = list(range(32)), {}
    outputs: dict[int, list[np.ndarray]] = {number: [] for number in range(32)}
    while waiting or open_streams:
        for number in dice.sample(waiting, min(len(waiting), dice.randrange(4))):
            place = dice.randrange(2)
            if free[place]:
                waiting.remove(number)
                open_streams[number] = place, free[place].pop(dice.randrange(len(free[place])))
                replicas[place].reset(open_streams[number][1])
        for number in dice.sample(list(open_streams), len(open_streams) // 5):
            place, slot = open_streams[number]
            if free[1 - place]:
                other = free[1 - place].pop()
                replicas[1 - place].reset(other)
                replicas[1 - place].restore(other, replicas[place].export(slot))
                free[place].append(slot)
                open_streams[number] = 1 - place, other
        for place, slots in enumerate(replicas):
            here = [number for number, (at, _) in open_streams.items() if at == place]
            members = dice.sample(here, min(len(here), dice.randrange(9)))
            for row, number in enumerate(members):
                slots.inputs[row, : config.step_samples] = steps[number][len(outputs[number])]
            if members:
                rows = slots.run([open_streams[number][1] for number in members])
                for number, row in zip(members, rows, strict=True):
                    outputs[number].append(row)
        for number in [each for each in open_streams if len(outputs[each]) == len(steps[each])]:
            place, slot = open_streams.pop(number)
            free[place].append(slot)
    found = [symbols_of(model, np.concatenate(outputs[n])[config.delay_frames :]) for n in range(32)]
    assert found == alone
    assert sum(len(symbols) for symbols, _ in found) > 32

"""Damaged recordings of every container and codec end in samples or a refusal, and never end the process."""

from __future__ import annotations

import random
import sys

import pytest

from tests.support.audio import fuzzer
from tests.support.audio.media_files import SAMPLES, uploaded
from tests.support.audio.mutations import mutated, seeds
from tutti_asr_lab.trials.hostile.containers import broken

NIGHTLY = 200_000
AT_A_TIME = 10_000  # so that growth of memory is seen, and a fault is near its first number


def test_a_slice_of_damaged_recordings_is_decoded_or_refused() -> None:
    assert fuzzer.faults_of(0, 500) == []


@pytest.mark.release
@pytest.mark.parametrize("first", range(1_000_000, 1_000_000 + NIGHTLY, AT_A_TIME))
def test_damaged_recordings_are_decoded_or_refused(first: int) -> None:
    assert fuzzer.faults_of(first, AT_A_TIME) == []


def test_every_undamaged_seed_is_decoded() -> None:
    assert all(len(uploaded(body)[0]) for body in seeds())


def test_a_number_names_the_same_recording_everywhere() -> None:
    assert mutated(7) == mutated(7) != mutated(8)


DIES_AT_3 = """
import os, signal, sys
for number in range(*map(int, sys.argv[1:])):
    print("begin", number, flush=True)
    if number == 3:
        os.kill(os.getpid(), signal.SIGSEGV)
    if number == 5:
        print("Exception ignored", file=sys.stderr)
"""


def test_a_child_that_dies_or_complains_is_reported_with_its_recording() -> None:
    """The run continues with the next recording."""
    died, complained = fuzzer.faults_of(1, 6, [sys.executable, "-c", DIES_AT_3])
    assert (died.number, died.result[:35]) == (3, "the process ended with status -11: ")
    assert (complained.number, complained.result) == (4, "written to stderr: Exception ignored\n")


# Broken containers from `tutti_asr_lab.trials.hostile`

WITHOUT_A_RATE = (105, 15_596)  # a second FLAC, and a track, at 0 Hz


@pytest.mark.parametrize("numbers", [WITHOUT_A_RATE, range(1_000), range(1_000, 2_000)])
def test_a_broken_container_is_read_or_refused(numbers: tuple[int, ...] | range) -> None:
    sample, noise = (SAMPLES / "porch_fan.flac").read_bytes(), random.Random(0).randbytes(64_000)
    for number in numbers:
        fuzzer.decode_both_ways(broken(sample, noise, random.Random(number)), 0)

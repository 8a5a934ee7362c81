"""A run gives the same weights with 1, 2 and 4 processes, and after processes were killed."""

import random
import re

import pytest

from tests.support.needs import need_programs
from tests.support.training import tones
from tests.support.training.killed_runs import SAVED_EVERY, finished, in_process, killed

UPDATES = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    need_programs("espeak-ng")
    return tones.write_tones(tmp_path_factory.mktemp("tones"))


@pytest.fixture(scope="module")
def undisturbed(folder, tmp_path_factory):
    found, said = in_process(folder, tmp_path_factory.mktemp("alone") / "one.safetensors", UPDATES)
    assert said[-1].startswith(f"update {UPDATES}/{UPDATES}")
    return found


@pytest.mark.parametrize("processes", [2, 4])
def test_any_number_of_processes_gives_the_same_weights(folder, tmp_path, undisturbed, processes):
    found, said = finished(folder, tmp_path / "again.safetensors", processes, UPDATES)
    assert f"{processes} process(es)" in said
    assert found == undisturbed


def test_killed_runs_end_with_the_weights_of_an_undisturbed_one_for_any_number_of_processes(
    folder, tmp_path, undisturbed
):
    """`python -m tests.support.training.killed_runs` repeats this twenty times."""
    out = tmp_path / "killed.safetensors"
    rng = random.Random(0)
    reached = 0
    for everything in (False, True):
        after = rng.randint(5, 8)
        begun = killed(folder, out, 2, UPDATES, after, everything=everything)
        assert begun >= reached - SAVED_EVERY, "a kill loses only the updates since the last snapshot"
        reached = begun + after
    found, said = in_process(folder, out, UPDATES)
    assert any(re.match(r"resuming from update \d+", line) for line in said)
    assert found == undisturbed

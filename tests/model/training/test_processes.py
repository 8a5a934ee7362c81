"""A run gives one set of weights: for 1, 2 and 4 processes, and whatever was killed on the way."""

import contextlib
import hashlib
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tones
from needs import need_programs

PROGRAM = tones.__file__
UPDATES = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    need_programs("espeak-ng")
    return tones.write_tones(tmp_path_factory.mktemp("tones"))


def started(folder, out, processes):
    arguments = [sys.executable, PROGRAM, folder, out, str(processes), str(UPDATES)]
    return subprocess.Popen(
        [str(a) for a in arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def finished(folder, out, processes):
    with started(folder, out, processes) as run:
        said, _ = run.communicate(timeout=100)
    assert run.returncode == 0, said
    return digest(out), said


def digest(out):
    return hashlib.sha256(Path(out).read_bytes()).hexdigest()


def alone(folder, out):
    """The same run, or the rest of it, in this process."""
    said = []
    tones.train(
        tones.TINY,
        tones.everything(UPDATES),
        tones.places(folder, out),
        processes=1,
        device="cpu",
        announce=said.append,
    )
    return digest(out), said


@pytest.fixture(scope="module")
def undisturbed(folder, tmp_path_factory):
    found, said = alone(folder, tmp_path_factory.mktemp("alone") / "one.safetensors")
    assert said[-1].startswith(f"update {UPDATES}/{UPDATES}")
    return found


@pytest.mark.parametrize("processes", [2, 4])
def test_any_number_of_processes_gives_the_same_weights(folder, tmp_path, undisturbed, processes):
    found, said = finished(folder, tmp_path / "again.safetensors", processes)
    assert f"{processes} process(es)" in said
    assert found == undisturbed


def children_of(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def workers_of(pid):
    """Those of a run's processes that train."""
    return [
        child
        for child in children_of(pid)
        if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text(errors="replace")
    ]


def killed_at(folder, out, processes, update, *, everything):
    """Start, kill -9 one of the processes or all of them after this update; returns where the run had begun."""
    begun = 0
    with started(folder, out, processes) as run:
        for line in run.stdout:
            if match := re.match(r"going on from update (\d+)", line):
                begun = int(match[1])
            if line.startswith(f"update {update}/"):
                break
        else:
            pytest.fail("it never came to that update")
        victims = workers_of(run.pid) or [run.pid]
        if everything:
            victims.append(run.pid)
        else:
            victims = [random.Random(update).choice(victims)]
        for victim in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        run.communicate(timeout=30)
    assert run.returncode != 0
    return begun


def test_killed_runs_end_with_the_weights_of_an_undisturbed_one_with_other_numbers_of_processes_too(
    folder, tmp_path, undisturbed
):
    """Snapshots are taken at every third update: a kill costs three at most."""
    out = tmp_path / "killed.safetensors"
    kills = random.Random(0)
    at = 0
    for processes, everything in ((2, False), (2, True)):
        before, at = at, at + kills.randint(5, 8)
        begun = killed_at(folder, out, processes, at, everything=everything)
        assert begun >= before - 3
    found, said = alone(folder, out)
    assert any(re.match(r"going on from update \d+", line) for line in said)
    assert found == undisturbed

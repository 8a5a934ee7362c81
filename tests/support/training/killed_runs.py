"""Training runs whose processes are killed, one or all, until one run ends; and the digest of its weights.

python -m tests.support.training.killed_runs [KILLS [SEED]]    default: 20 kills; exit status 1 if the weights differ
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.training import tones

SAVED_EVERY = 3  # updates between snapshots of the program
END_WITHIN_S = 30.0


def started(folder: Path, out: Path, processes: int, updates: int) -> subprocess.Popen[str]:
    """Start a run on `tones`, which prints one line per update."""
    arguments = [sys.executable, tones.__file__, folder, out, processes, updates]
    return subprocess.Popen(
        [str(argument) for argument in arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def finished(folder: Path, out: Path, processes: int, updates: int) -> tuple[str, str]:
    """Finish or resume a run; return the digest of its weights and its output."""
    with started(folder, out, processes, updates) as run:
        said, _ = run.communicate(timeout=600)
    assert run.returncode == 0, said
    return digest(out), said


def in_process(folder: Path, out: Path, updates: int) -> tuple[str, list[str]]:
    """Do the same in this process."""
    said: list[str] = []
    chosen, places = tones.everything(updates), tones.places(folder, out)
    tones.train(tones.TINY, chosen, places, processes=1, device="cpu", announce=said.append)
    return digest(out), said


def digest(out: Path) -> str:
    """Digest of the weights."""
    return hashlib.sha256(out.read_bytes()).hexdigest()


def workers_of(pid: int) -> list[int]:
    """Training processes of a run."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def killed(folder: Path, out: Path, processes: int, updates: int, after: int, *, everything: bool) -> int:
    """Run for `after` updates, then kill -9 one process or all; return the update from which it resumed."""
    begun, done = 0, 0
    with started(folder, out, processes, updates) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if match := re.match(r"resuming from update (\d+)", line):
                begun = int(match[1])
            done += bool(re.match(r"update \d+/", line))
            if done == after:
                break
        assert done == after, "the run ended early"
        victims = workers_of(run.pid) or [run.pid]
        victims = [*victims, run.pid] if everything else [random.Random(after + begun).choice(victims)]
        for victim in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        run.communicate(timeout=END_WITHIN_S)
    assert run.returncode != 0
    return begun


def main(kills: int = 20, seed: int = 1) -> int:
    """Kill a run `kills` times at random updates, with 1, 2 or 4 processes; compare its final weights."""
    rng = random.Random(seed)
    updates = 6 * kills
    with tempfile.TemporaryDirectory() as made:
        folder = tones.write_tones(Path(made))
        undisturbed, _ = in_process(folder, folder / "undisturbed.safetensors", updates)
        out = folder / "killed.safetensors"
        for number in range(1, kills + 1):
            processes, everything = rng.choice((1, 2, 4)), rng.random() < 0.5
            after = rng.randint(1, 6)
            begun = killed(folder, out, processes, updates, after, everything=everything)
            who = "all of" if everything else "one of"
            tones.say(f"kill {number}: {who} {processes}, begun at update {begun}, killed at {begun + after}")
        found, _ = in_process(folder, out, updates)
    tones.say(f"undisturbed {undisturbed[:16]}, killed {kills} times {found[:16]}")
    return int(found != undisturbed)


if __name__ == "__main__":
    sys.exit(main(*(int(argument) for argument in sys.argv[1:])))

"""CPU time of the server's event loop per step, for messages of 20, 40 and 80 ms.

`python -m loadtest.benchmarks.event_loop` starts `tutti serve` of this tree and streams speech in real time, by the
client of `tutti calibrate`, with an answer to every step. `--against DIRECTORY` starts the server of another tree, too,
and measures both in alternation with the same load: both run all the time, so other programs affect both. Times are of
the event loop's thread alone. Steps of larger batches are cheaper, so compare at similar rows a batch: choose
`--streams` far below what the machine carries. The last line is one JSON document; exit status 1 if a step in messages
of 20 ms costs more than `DEARER` times one in a message of 80 ms.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.planning.calibrate import speech
from loadtest.planning.loopback import Window, load
from loadtest.reports import environment
from loadtest.served import ALL_IN, ONE_PROCESS, ROOT, served_process

STEP_SAMPLES = 1_280  # of the shipped model: 80 ms at 16 kHz
SAMPLE_BYTES = 2
MESSAGES_MS = (80, 40, 20)
STEP_MS = 80
DEARER = 1.4
"""Bar for messages of 20 ms: cost of a step by that of a step in one message."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds of the event loop per step, and the mean rows of a batch at that time."""

    us: float
    rows: float

    @classmethod
    def of(cls, window: Window) -> Cost:
        """Return the cost in this window."""
        return cls(1e6 * window.loop_s / window.rows, window.rows / window.batches)


Costs = dict[int, Cost]
"""By the length of a message in milliseconds."""


def messages(steps: Sequence[bytes], length_ms: int) -> list[bytes]:
    """Split steps of 80 ms into messages of `length_ms`, a divisor of 80."""
    size = STEP_SAMPLES * SAMPLE_BYTES * length_ms // STEP_MS
    return [step[at : at + size] for step in steps for at in range(0, len(step), size)]


def summary(costs: Sequence[Costs], against: Sequence[Costs]) -> dict[str, dict[str, float]]:
    """Return medians over the rounds by message length; `ratio` is the median of each round's own ratio."""
    found: dict[str, dict[str, float]] = {}
    for length_ms in costs[0]:
        row = {f"here_{name}": value for name, value in _medians(costs, length_ms).items()}
        if against:
            row |= {f"there_{name}": value for name, value in _medians(against, length_ms).items()}
            pairs = zip(costs, against, strict=True)
            row["ratio"] = statistics.median(ours[length_ms].us / theirs[length_ms].us for ours, theirs in pairs)
        found[f"{length_ms} ms"] = {name: round(value, 3) for name, value in row.items()}
    return found


def _medians(costs: Sequence[Costs], length_ms: int) -> dict[str, float]:
    return {
        "us": statistics.median(each[length_ms].us for each in costs),
        "rows": statistics.median(each[length_ms].rows for each in costs),
        "to_80_ms": statistics.median(each[length_ms].us / each[STEP_MS].us for each in costs),
    }


def _options(tree: Path) -> list[str]:
    """Return the options of a tree's server; an older tree has one process and no option for it."""
    return [*ALL_IN, *(ONE_PROCESS if (tree / "server" / "processes").exists() else ()), "--log-level", "error"]


def measure(trees: Sequence[Path], *, streams: int, rounds: int, seconds: float) -> list[list[Costs]]:
    """Return the costs of each round, by tree. Raises: ServerNotReady, OSError."""
    steps = speech(("en",), STEP_SAMPLES)
    found: list[list[Costs]] = [[] for _ in trees]
    with contextlib.ExitStack() as servers:
        running = [servers.enter_context(served_process(_options(tree), tree=tree)) for tree in trees]
        for number in range(rounds):
            costs: list[Costs] = [{} for _ in trees]
            for length_ms in MESSAGES_MS:
                # The order changes with the round, so that neither tree is always the first.
                for index in sorted(range(len(trees)), reverse=number % 2 == 1):
                    url, pid = running[index]
                    port, sent = int(url.rpartition(":")[2]), messages(steps, length_ms)
                    parts = STEP_MS // length_ms
                    window = load(port, pid, sent, streams=streams, seconds=seconds, answers=True, parts=parts)
                    costs[index][length_ms] = cost = Cost.of(window)
                    sys.stdout.write(
                        f"round {number + 1}, tree {index}, {length_ms} ms: {cost.us:6.1f} µs a step, "
                        f"{cost.rows:.2f} rows a batch\n"
                    )
                    sys.stdout.flush()
            for all_rounds, one in zip(found, costs, strict=True):
                all_rounds.append(one)
    return found


def too_dear(rows: dict[str, dict[str, float]]) -> bool:
    """Whether the shortest messages cost more than they may."""
    return rows[f"{min(MESSAGES_MS)} ms"]["here_to_80_ms"] > DEARER


def main() -> None:
    """Measure, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="another tree to compare with")
    parser.add_argument("--streams", type=int, default=300, help="live streams on one server at a time")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of one measurement")
    options = parser.parse_args()
    trees = [ROOT] if options.against is None else [ROOT, options.against.resolve()]
    found = measure(trees, streams=options.streams, rounds=options.rounds, seconds=options.seconds)
    rows = summary(found[0], found[1] if len(found) > 1 else [])
    for name, row in rows.items():
        sys.stdout.write(f"{name}: {', '.join(f'{key} {value:g}' for key, value in row.items())}\n")
    here = environment.describe(seed=0)
    report = {"hardware": here.hardware, "cores": here.cores, "streams": options.streams, "costs": rows}
    sys.stdout.write(json.dumps(report) + "\n")
    sys.exit(too_dear(rows))


if __name__ == "__main__":
    main()

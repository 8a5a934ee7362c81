"""Decodes damaged recordings in a child process, uploaded and live, and reports those that end it or are not refused.

`python -m tests.support.audio.fuzzer --count 200000` decodes that many. A number makes the same recording everywhere.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from server.audio.decoder import open_decoder
from server.audio.formats import audio_form
from server.audio.recordings.recording import Recording
from server.errors import MediaError, Refused
from tests.support.audio.mutations import mutated

RATE, PIECE_BYTES, LIMIT_S = 16_000, 4_096, 20.0
MAX_CPU_S = 12.0  # for a body of 60 kB: what an upload is allowed, and a block that has begun
MAX_GROWTH_MIB = 400  # over the whole run
HANG_S = 60.0  # wall time of one recording, after which the child writes its stack and ends
DEFECTS = "Traceback", "Exception ignored"  # on stderr
CHILD = (sys.executable, "-m", "tests.support.audio.fuzzer", "--child")
FORMS = (
    audio_form(None, None),
    audio_form("linear16", 16_000),
    audio_form("opus", 48_000),
    audio_form("ogg-opus", None),
)


@dataclass(frozen=True, slots=True)
class Fault:
    """A recording by its number, and its result, which is neither samples nor a refusal."""

    number: int
    result: str


def decode_both_ways(body: bytes, number: int) -> None:
    """Decode a body as an upload, then as a live stream. Raises: anything but a refusal is a fault."""
    with contextlib.suppress(Refused):
        recording = Recording(body, FORMS[0], rate=RATE, max_s=600.0)
        while recording.next_block() is not None:
            pass
    with contextlib.suppress(MediaError):
        multichannel = bool(number & 4)
        decoder = open_decoder(FORMS[number % 4], RATE, multichannel=multichannel)
        for at in range(0, len(body), PIECE_BYTES):
            decoder.feed(body[at : at + PIECE_BYTES], LIMIT_S)
            if decoder.holds:
                decoder.feed(b"", LIMIT_S)
        decoder.flush(LIMIT_S)


def decode_range(first: int, end: int) -> None:
    """Decode recordings of this range, with one line on stdout before each and one for each fault; the child's part."""
    faulthandler.enable()
    for number in range(first, end):
        _say("begin", number)
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        body, began_s = mutated(number), time.process_time()
        try:
            decode_both_ways(body, number)
        except Exception:  # noqa: BLE001 - whatever it is, a client can cause it
            _say("fault", number, repr(traceback.format_exc(limit=-3)))
        if (used_s := time.process_time() - began_s) > MAX_CPU_S:
            _say("fault", number, repr(f"{used_s:.1f} s of processor time"))
        if number == first:
            before = _peak_mib()
    _say("growth", round(_peak_mib() - before))


def _say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024


def faults_of(first: int, count: int, child: Sequence[str] = CHILD) -> list[Fault]:
    """Decode `count` recordings from number `first` on in processes of the command `child`; return the faults."""
    faults, at = list[Fault](), first
    while at < first + count:
        at = _run_child((*child, str(at), str(first + count)), faults)
    return faults


def _run_child(command: Sequence[str], faults: list[Fault]) -> int:
    """Run one child until it ends; return the number to continue from."""
    first, end = int(command[-2]), int(command[-1])
    last = first
    with (
        tempfile.TemporaryFile("w+", errors="replace") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as child,
    ):
        assert child.stdout is not None
        for line in child.stdout:
            kind, number, *what = line.rstrip("\n").split(" ", 2)
            last = int(number) if kind == "begin" else last
            if kind == "fault":
                faults.append(Fault(int(number), what[0]))
            if kind == "growth" and int(number) > MAX_GROWTH_MIB:
                faults.append(Fault(last, f"memory grew by {number} MiB"))
        child.wait()
        stderr.seek(0)
        noise = stderr.read()
    if child.returncode:
        faults.append(
            Fault(
                last, f"the process ended with status {child.returncode}: {noise[max(0, noise.find('Fatal')) :][:500]}"
            )
        )
        return last + 1
    if found := [at for defect in DEFECTS if (at := noise.find(defect)) >= 0]:
        faults.append(Fault(first, f"written to stderr: {noise[min(found) :][:500]}"))
    return end


def main() -> None:
    """Print the faults; exit 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="number of the first recording")
    parser.add_argument("--count", type=int, default=10_000, help="number of recordings")
    parser.add_argument("--child", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        decode_range(*options.child)
        return
    faults = faults_of(options.first, options.count)
    for fault in faults:
        _say(fault.number, fault.result)
    _say(f"{options.count} recordings, {len(faults)} faults")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()

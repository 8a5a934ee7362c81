"""A program that gets SIGTERM ends the servers it started."""

from __future__ import annotations

import signal
import subprocess
import sys

PROGRAM = """
import contextlib, time
from loadtest.program import carry_out

@contextlib.contextmanager
def started():
    try:
        yield
    finally:
        print("ended", flush=True)

def work(command):
    with started():
        print("started", flush=True)
        time.sleep(60)

carry_out("loadtest.anything", work)
"""


def test_a_program_ends_its_servers_on_sigterm() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as done:
        assert done.stdout is not None
        assert done.stdout.readline() == "started\n"
        done.send_signal(signal.SIGTERM)
        rest, _ = done.communicate(timeout=30)
    assert rest == "ended\n"
    assert done.returncode != 0

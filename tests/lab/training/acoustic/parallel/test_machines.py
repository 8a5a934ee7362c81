"""Two machines under torchrun, as network namespaces: both end when their link is cut; one resumes the run alone."""

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.needs import missing, need_programs
from tests.support.training import tones
from tutti_asr_lab.training.acoustic.parallel.heartbeat import EXIT_SILENT
from tutti_asr_lab.training.acoustic.snapshots import Snapshots

ROOT = Path(__file__).parents[5]
NAMESPACES = [f"tutti-{os.getpid()}-{node}" for node in range(2)]
ADDRESSES = ["10.213.7.1", "10.213.7.2"]
LINK = "link0"
LONG = 2_000  # updates, more than are completed before the cut


def ip(*arguments):
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


@pytest.fixture
def machines():
    """Two network namespaces with one link between them."""
    need_programs("ip")
    try:
        for namespace in NAMESPACES:
            ip("netns", "add", namespace)
        one, other = NAMESPACES
        ip("link", "add", LINK, "netns", one, "type", "veth", "peer", "name", LINK, "netns", other)
        for namespace, address in zip(NAMESPACES, ADDRESSES, strict=True):
            ip("-n", namespace, "addr", "add", f"{address}/24", "dev", LINK)
            for device in (LINK, "lo"):
                ip("-n", namespace, "link", "set", device, "up")
    except OSError as error:
        missing(f"no network namespaces: {error}")
    yield
    for namespace in NAMESPACES:
        with contextlib.suppress(OSError):
            ip("netns", "delete", namespace)


def torchrun(node, folder, out):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    address = ["--node-rank", str(node), "--master-addr", ADDRESSES[0], "--master-port", "29511"]
    program = [tones.__file__, str(folder), str(out), "2", str(LONG)]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "clients"), str(ROOT / "lab")])
    return subprocess.Popen(
        ["ip", "netns", "exec", NAMESPACES[node], *launcher, *address, *program],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": paths, "GLOO_SOCKET_IFNAME": LINK, "OMP_NUM_THREADS": "1"},
    )


def trainers(namespace):
    """Training processes in a namespace, which torchrun started."""
    found = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=True)
    lines = {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in found.stdout.split()}
    return [pid for pid, line in lines.items() if b"-m" not in line and tones.__file__.encode() in line]


def test_a_cut_link_ends_both_machines_within_ten_seconds_and_the_run_resumes_elsewhere(machines, tmp_path):
    need_programs("espeak-ng")
    folder, out = tones.write_tones(tmp_path), tmp_path / "net.safetensors"
    nodes = [torchrun(node, folder, out) for node in range(2)]
    try:
        for line in nodes[0].stdout:
            if re.match(r"update [5-9]/", line):
                break
        else:
            pytest.fail("the run never began")
        waiting = [os.pidfd_open(pid) for namespace in NAMESPACES for pid in trainers(namespace)]
        assert len(waiting) == 2
        ip("-n", NAMESPACES[0], "link", "set", LINK, "down")
        cut = time.monotonic()
        ended = [ends(process, cut + 10) for process in waiting]
        assert all(ended)
        said = [node.communicate(timeout=60)[0] for node in nodes]
        assert all(node.returncode for node in nodes)
        assert all(
            re.search(rf"no heartbeat of .* for \d+ s|exitcode *: {EXIT_SILENT}|has ended", text) for text in said
        ), said
    finally:
        for node in nodes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(node.pid, signal.SIGKILL)
            node.wait()
    update, _ = Snapshots(tmp_path / "net.run").newest(pytest.fail)
    again = []
    shutil.copytree(tmp_path / "net.run", tmp_path / "rest.run")
    rest = tones.places(folder, tmp_path / "rest.safetensors")
    with pytest.raises(KeyboardInterrupt):
        tones.train(tones.TINY, tones.everything(LONG), rest, processes=1, device="cpu", announce=stop_soon(again))
    assert f"resuming from update {update}" in again


def stop_soon(said):
    def announce(line):
        said.append(line)
        if line.startswith("1 process"):
            signal.raise_signal(signal.SIGINT)

    return announce


def ends(process, until):
    """Whether a process ends by a given time; `process` is its file descriptor."""
    ready, _, _ = select.select([process], [], [], max(0.0, until - time.monotonic()))
    os.close(process)
    return bool(ready)

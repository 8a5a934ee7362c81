"""The systemd unit passes systemd's own checks, and its command with its variables serves and drains."""

from __future__ import annotations

import os
import resource
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from loadtest.served import free_port
from server.settings import Settings
from tests.support.audio.speech import ROOT
from tests.support.deployment.chart import longest_drain_s
from tests.support.deployment.edge import wait_until
from tests.support.deployment.keys import write_keys
from tests.support.needs import need_programs
from tests.support.servers.fakes import WAIT_S

UNIT = ROOT / "deploy" / "systemd" / "tutti@.service"
PROGRAM = Path(sys.executable).parent / "tutti"


def values(key: str) -> list[str]:
    """Return the values of a key, in the order of the file."""
    lines = (line.partition("=") for line in UNIT.read_text().splitlines() if not line.startswith("#"))
    return [value for name, _, value in lines if name == key]


def variables(**specifiers: str) -> dict[str, str]:
    """Return the variables of the unit, with systemd's specifiers replaced."""
    text = " ".join(values("Environment"))
    for name, value in specifiers.items():
        text = text.replace(f"%{name}", value)
    return dict(each.split("=", 1) for each in shlex.split(text))


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Write the unit with a program that exists, as systemd checks."""
    path = tmp_path / "tutti@8081.service"
    path.write_text(UNIT.read_text().replace("/opt/tutti/bin/tutti", str(PROGRAM)))
    return path


def test_systemd_accepts_the_unit(installed: Path) -> None:
    need_programs("systemd-analyze")
    words = ["systemd-analyze", "verify", "--man=no", str(installed)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=WAIT_S)
    ours = [line for line in done.stderr.splitlines() if installed.name in line]
    assert ours == []


def test_systemd_counts_little_exposure(installed: Path) -> None:
    need_programs("systemd-analyze")
    words = ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(installed)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=WAIT_S)
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr


def test_variables_of_the_unit_are_settings_and_time_covers_the_drain() -> None:
    named = [name for name in variables(i="1", d="/d", C="/c") if name.startswith("TUTTI_")]
    assert {name.removeprefix("TUTTI_").lower() for name in named} <= set(Settings.model_fields)
    drain_s = float(variables(i="1", d="/d", C="/c")["TUTTI_DRAIN_TIMEOUT_S"])
    assert float(values("TimeoutStopSec")[0]) >= longest_drain_s(Settings(drain_timeout_s=drain_s))
    assert int(values("LimitNOFILE")[0]) >= 1_024 + 100


def test_the_unit_serves_and_drains_with_its_variables_and_limits(tmp_path: Path) -> None:
    port = free_port()
    write_keys(tmp_path)
    [command] = values("ExecStart")
    words = shlex.split(command.replace("/opt/tutti/bin/tutti", str(PROGRAM)).replace("%i", str(port)))
    env = variables(i=str(port), d=str(tmp_path), C=str(tmp_path)) | {"PATH": os.environ["PATH"]}
    del env["NUMBA_CACHE_DIR"]  # this checkout has compiled code
    limit = int(values("LimitNOFILE")[0])
    log = (tmp_path / "log").open("wb")
    process = subprocess.Popen(
        ["prlimit", f"--nofile={limit}", *words], env=env, cwd="/", stdout=log, stderr=log, stdin=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: _ready(port) or process.poll() is not None, every_s=0.1, within_s=90)
        assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE)[0] == limit, (tmp_path / "log").read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=WAIT_S) == 0
    finally:
        process.kill()
        log.close()


def _ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
    except httpx.TransportError:
        return False

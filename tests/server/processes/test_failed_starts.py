"""Starts that fail, of one process and of several: one line says why, and what to do."""

from __future__ import annotations

import socket
import subprocess

import pytest

from loadtest.served import serve_command
from tests.support.servers.front_ends import WITHIN_S


def serves(*options: str) -> subprocess.CompletedProcess[str]:
    command = serve_command(0, options)
    return subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False)


@pytest.mark.parametrize(
    ("setting", "front_ends"),
    [("port", "0"), ("port", "1"), ("vosk_port", "0"), ("metrics_port", "1"), ("wyoming_port", "1")],
)
def test_a_port_in_use_is_named_before_a_model_is_loaded(setting: str, front_ends: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        spelled = "--port" if setting == "port" else f"TUTTI_{setting.upper()}"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(f"TUTTI_{setting.upper()}", str(port))
            options = ("--port", str(port)) if setting == "port" else ()
            ended = serves("--front-ends", front_ends, *options)
    assert ended.returncode == 3
    assert spelled in ended.stderr
    assert f"127.0.0.1:{port}: Address already in use; stop the process that uses this port" in ended.stderr
    assert "model loaded" not in ended.stderr + ended.stdout


def test_a_model_that_is_not_there_is_named() -> None:
    ended = serves("--front-ends", "1", "--model", "/nonexistent")
    assert ended.returncode != 0
    assert "/nonexistent" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("front_ends", ["0", "1"])
def test_states_that_memory_does_not_hold_are_refused_in_one_line(front_ends: str) -> None:
    ended = serves("--front-ends", front_ends, "--max-streams", "100000000", "--decoder", "greedy", "--vad", "off")
    assert ended.returncode == 1
    [line] = [line for line in ended.stderr.splitlines() if line.startswith("tutti: --max-streams")]
    assert line.startswith("tutti: --max-streams (TUTTI_MAX_STREAMS): model")
    assert line.endswith("; set a lower number, or add memory")
    assert "Traceback" not in ended.stderr

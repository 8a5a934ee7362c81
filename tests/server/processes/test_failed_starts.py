"""Starts that fail, of one process and of several: one line says why, and what to do."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest

from loadtest.served import serve_command
from model.errors import ModelError
from server.app import check_files
from server.errors import SettingsError
from server.settings import Settings
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


FILES = ("api_keys_file", "token_keys_file", "resume_keys_file", "receipt_key_file", "admin_keys_file", "written_forms")


@pytest.mark.parametrize("setting", [*FILES, "lm", "grammars", "turn_model", "usage_log", "callback_folder"])
def test_a_file_that_is_not_valid_is_named_without_a_model(setting: str, tmp_path: Path) -> None:
    path = tmp_path / "en-bad.arpa"
    path.write_text("short\n")
    values = {"grammars": tmp_path, "usage_log": path / "folder", "callback_folder": path / "folder"}
    hosts = ("a.example",) if setting == "callback_folder" else ()
    with pytest.raises((SettingsError, ModelError), match=f"{setting}|{path}"):
        check_files(Settings.model_validate({setting: values.get(setting, path), "callback_hosts": hosts}))


@pytest.mark.parametrize("front_ends", ["0", "1"])
def test_a_file_that_is_not_valid_ends_the_start_before_a_model_is_ready(front_ends: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("short\n")
    ended = serves("--front-ends", front_ends, "--api-keys-file", str(keys), "--model", "tutti-gru")
    assert ended.returncode == 1
    assert f"tutti: --api-keys-file (TUTTI_API_KEYS_FILE): {keys}:1: expected a SHA-256 digest" in ended.stderr
    assert "model loaded" not in ended.stderr or front_ends == "1", "an engine host loads it meanwhile"


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

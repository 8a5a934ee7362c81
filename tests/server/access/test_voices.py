"""Enrolled voices: who may use which, what a file holds, and what happens to files that cannot be read."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from structlog.testing import capture_logs

from server.access.keys import Key, write_private
from server.access.voices import OTHER_WEIGHTS, UNKNOWN, UNREADABLE, VoiceFolder
from server.errors import BadParameter, SettingsError

BANK, SHOP = Key(b"1" * 32, "bank"), Key(b"2" * 32, "shop")
NAMELESS, KEYLESS = Key(b"3" * 32), Key(b"", "anybody")
FIRST, SECOND = (row.tobytes() for row in np.eye(256, dtype=np.float32)[:2])


@pytest.fixture
def folder(tmp_path: Path) -> VoiceFolder:
    return VoiceFolder.made(tmp_path / "voices", "weights")


def refusal(folder: VoiceFolder, name: str, key: Key | None) -> str:
    with pytest.raises(BadParameter) as refused:
        folder.find(name, key)
    return str(refused.value)


def test_a_voice_of_a_key_is_for_this_key_alone(folder: VoiceFolder) -> None:
    folder.add("ada", "bank", FIRST, 21.0)
    folder.add("ada", NAMELESS.id, SECOND, 21.0)
    assert folder.find("ada", BANK) == FIRST
    assert folder.find("ada", NAMELESS) == SECOND
    texts = {refusal(folder, name, key) for name in ("ada", "unknown", "../ada", "") for key in (SHOP, KEYLESS, None)}
    assert texts == {UNKNOWN}, "a foreign name and none are refused alike"


def test_other_keys_files_are_not_touched(folder: VoiceFolder) -> None:
    """Not even for a moment that could be measured: damaged files of others change nothing."""
    folder.add("ada", "bank", FIRST, 21.0)
    _file(folder, "ada+bank").write_text("damaged")
    assert refusal(folder, "ada", SHOP) == UNKNOWN


def test_a_keys_own_voice_comes_before_one_for_every_key(folder: VoiceFolder) -> None:
    folder.add("ada", "", FIRST, 21.0)
    assert [folder.find("ada", key) for key in (BANK, KEYLESS, None)] == [FIRST] * 3
    folder.add("ada", "bank", SECOND, 21.0)
    assert [folder.find("ada", key) for key in (BANK, SHOP, None)] == [SECOND, FIRST, FIRST]
    folder.delete("ada", "")
    assert folder.find("ada", BANK) == SECOND
    assert refusal(folder, "ada", SHOP) == UNKNOWN


def test_a_server_without_keys_has_only_voices_for_every_key(folder: VoiceFolder) -> None:
    folder.add("ada", "anybody", FIRST, 21.0)
    assert refusal(folder, "ada", KEYLESS) == UNKNOWN


def test_files_are_for_their_owner_alone_and_hold_no_audio(folder: VoiceFolder, tmp_path: Path) -> None:
    folder.add("ada", "bank", FIRST, 21.0)
    assert [path.name for path in (tmp_path / "voices").iterdir()] == ["ada+bank.voice.json"]
    file = _file(folder, "ada+bank")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert json.loads(file.read_text()).keys() == {"name", "key", "weights", "created", "seconds", "vector"}
    assert file.stat().st_size < 1_700


def test_voices_are_listed_by_name_and_deleted_once(folder: VoiceFolder) -> None:
    for name, key in (("eve", ""), ("ada", "shop"), ("ada", "bank")):
        folder.add(name, key, FIRST, 21.04)
    assert [(one.name, one.key, one.seconds) for one in folder.every()] == [
        ("ada", "bank", 21.0),
        ("ada", "shop", 21.0),
        ("eve", "", 21.0),
    ]
    with pytest.raises(FileExistsError):
        folder.add("ada", "bank", SECOND, 21.0)
    folder.delete("ada", "bank")
    with pytest.raises(FileNotFoundError):
        folder.delete("ada", "bank")
    assert [(one.name, one.key) for one in folder.every()] == [("ada", "shop"), ("eve", "")]


@pytest.mark.parametrize("vector", [FIRST, FIRST[:512]])
def test_a_voice_of_other_weights_is_refused_by_name(folder: VoiceFolder, tmp_path: Path, vector: bytes) -> None:
    """Also one of another size."""
    folder.add("ada", "", vector, 21.0)
    newer = VoiceFolder(tmp_path / "voices", "other weights")
    assert refusal(newer, "ada", BANK) == OTHER_WEIGHTS
    assert [newer.fits(one) for one in newer.every()] == [False]
    assert [folder.fits(one) for one in folder.every()] == [True]


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b"null"])
def test_a_damaged_file_is_refused_and_logged_without_its_name(folder: VoiceFolder, content: bytes) -> None:
    folder.add("ada", "", FIRST, 21.0)
    _file(folder, "ada").write_bytes(content)
    with capture_logs() as lines:
        assert refusal(folder, "ada", BANK) == UNREADABLE
    assert lines == [{"event": "enrolled voice cannot be read", "reason": "not a voice", "log_level": "error"}]


def test_a_file_under_another_name_is_not_that_voice(folder: VoiceFolder) -> None:
    folder.add("ada", "bank", FIRST, 21.0)
    _file(folder, "ada+bank").rename(_file(folder, "ada+shop"))
    assert refusal(folder, "ada", SHOP) == UNREADABLE


@pytest.mark.parametrize("vector", [FIRST[:-4], bytes(1_024), np.full(256, np.nan, np.float32).tobytes()])
def test_numbers_that_are_no_vector_of_norm_1_are_refused(folder: VoiceFolder, vector: bytes) -> None:
    folder.add("ada", "", vector, 21.0)
    assert refusal(folder, "ada", BANK) == UNREADABLE


def test_what_is_logged_of_a_voice_has_neither_name_nor_vector(folder: VoiceFolder) -> None:
    assert repr(folder.add("ada", "bank", FIRST, 21.0)).startswith("EnrolledVoice(key='bank', created=20")


def test_a_folder_that_is_none_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="is not a folder; `tutti voice enroll` makes it"):
        VoiceFolder(tmp_path / "none", "weights")
    with patch.object(os, "access", lambda *_: False), pytest.raises(SettingsError, match="cannot read the folder"):
        VoiceFolder(tmp_path, "weights")


def test_a_file_is_written_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "one"
    write_private(file, b"before")
    with patch.object(os, "fsync", side_effect=OSError(28, "No space left on device")), pytest.raises(OSError):
        write_private(file, b"after")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("one", b"before")]


def _file(folder: VoiceFolder, stem: str) -> Path:
    return folder._path / f"{stem}.voice.json"

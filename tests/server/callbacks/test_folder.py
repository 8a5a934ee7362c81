"""Entries on disk: each is worked on by one process, and left to another when that one ends."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from server.callbacks.folder import CallbackEntry, CallbackFolder
from server.errors import SettingsError

ENTRY = CallbackEntry("a", "a", "https://results.example.org/", "POST", "key", query=(("model", "x"),), recording=True)


def test_an_entry_is_there_until_it_is_removed(tmp_path: Path) -> None:
    folder = CallbackFolder(tmp_path / "new")
    folder.add(ENTRY, "audio", b"RIFF")
    assert folder.claim() == [], "this process has it"
    assert (folder.read("a", "audio"), folder.read("a", "body")) == (b"RIFF", None)
    folder.resolve("a", b"{}")
    assert (folder.read("a", "audio"), folder.read("a", "body")) == (None, b"{}")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new").iterdir()}
    assert modes == {0o600}
    folder.remove("a")
    assert list((tmp_path / "new").iterdir()) == []


def test_another_process_takes_entries_only_after_the_first_has_ended(tmp_path: Path) -> None:
    add = (
        "import sys, pathlib\n"
        "from server.callbacks.folder import CallbackFolder, CallbackEntry\n"
        "folder = CallbackFolder(pathlib.Path(sys.argv[1]))\n"
        "folder.add(CallbackEntry('b', 'b', 'https://x/', 'PUT', ''), 'body', b'two')\n"
        "folder.add(CallbackEntry('a', 'a', 'https://x/', 'PUT', ''), 'body', b'one')\n"
        "print(flush=True); sys.stdin.read()"
    )
    first = subprocess.Popen(
        [sys.executable, "-c", add, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path.cwd()
    )
    assert first.stdout is not None
    first.stdout.readline()
    other = CallbackFolder(tmp_path)
    assert other.claim() == []
    first.kill()
    first.communicate()
    assert [entry.id for entry in other.claim()] == ["a", "b"]
    assert other.read("b", "body") == b"two"
    assert CallbackFolder(tmp_path).claim() == [], "the second has them"
    other.close()
    assert len(CallbackFolder(tmp_path).claim()) == 2


def test_files_of_an_entry_that_was_never_stored_are_removed_once_they_are_old(tmp_path: Path) -> None:
    for name in ("x.audio", "x.json.new", "y.audio"):
        (tmp_path / name).write_bytes(b"half")
    for name in ("x.audio", "x.json.new"):
        os.utime(tmp_path / name, (0, 0))
    (tmp_path / "z.json").write_bytes(b"{")
    folder = CallbackFolder(tmp_path)
    assert folder.claim() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["y.audio", "z.json"]


def test_a_full_disk_leaves_nothing_of_an_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = CallbackFolder(tmp_path)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        folder.add(ENTRY, "audio", b"RIFF")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SettingsError, match="cannot create the folder"):
        CallbackFolder(tmp_path / "file")

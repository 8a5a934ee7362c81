"""Snapshots: complete or absent, the last three are kept, a damaged one is refused and the previous one used."""

import signal
import subprocess
import sys

import pytest
import torch

from model.errors import TrainingError
from tutti_asr_lab.training.acoustic.snapshots import Snapshots, exclusive, read, state_of


def saved(folder, *updates):
    snapshots = Snapshots(folder)
    for update in updates:
        snapshots.save(update, {"weights": torch.full((100,), float(update))})
    return snapshots


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_last_three_are_kept_and_the_newest_is_read(tmp_path):
    snapshots = saved(tmp_path, 5, 10, 15, 20)
    assert names(tmp_path) == [f"update-{update:08d}.snapshot" for update in (10, 15, 20)]
    update, content = snapshots.newest(pytest.fail)
    assert update == 20
    assert torch.equal(state_of(content)["weights"], torch.full((100,), 20.0))


def test_there_may_be_no_snapshot(tmp_path):
    assert Snapshots(tmp_path / "nowhere").newest(pytest.fail) is None


def cut(content):
    return content[: len(content) // 2]


def flip(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize("damage", [cut, flip, lambda content: b"", lambda content: b"PK" + content])
def test_a_damaged_snapshot_is_refused_by_name_and_the_previous_one_used(tmp_path, damage):
    snapshots = saved(tmp_path, 5, 10)
    newest = tmp_path / "update-00000010.snapshot"
    newest.write_bytes(damage(newest.read_bytes()))
    with pytest.raises(ValueError, match=r"damaged|does not begin"):
        read(newest)
    said = []
    update, _ = snapshots.newest(said.append)
    assert update == 5
    (line,) = said
    assert str(newest) in line
    saved(tmp_path, 7)
    assert names(tmp_path) == ["update-00000005.snapshot", "update-00000007.snapshot"]


def test_a_run_with_only_damaged_snapshots_does_not_start_again_by_itself(tmp_path):
    snapshots = saved(tmp_path, 5)
    (path,) = tmp_path.iterdir()
    path.write_bytes(b"")
    with pytest.raises(TrainingError, match="remove the folder"):
        snapshots.newest(lambda _: None)


def test_a_kill_between_writing_and_renaming_leaves_the_previous_snapshot(tmp_path):
    snapshots = saved(tmp_path, 5)
    program = (
        "import os, pathlib, signal, sys, torch\n"
        "from tutti_asr_lab.training.acoustic.snapshots import Snapshots\n"
        "pathlib.Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "Snapshots(pathlib.Path(sys.argv[1])).save(10, {'weights': torch.zeros(100)})\n"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert len(names(tmp_path)) == 2, "the content was written, but not renamed"
    assert snapshots.newest(pytest.fail)[0] == 5
    saved(tmp_path, 10)
    assert names(tmp_path) == ["update-00000005.snapshot", "update-00000010.snapshot"]


def test_the_error_names_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(TrainingError, match=str(tmp_path / "file")):
        saved(tmp_path / "file", 1)
    assert names(tmp_path) == ["file"]


def test_a_second_run_in_one_folder_is_refused_until_the_first_one_has_ended(tmp_path):
    folder = tmp_path / "model.run"
    with exclusive(folder), pytest.raises(TrainingError, match=r"another run.*model\.run.*--out"), exclusive(folder):
        pytest.fail("both write there")
    assert not folder.exists(), "it has nothing but the lock"
    with exclusive(folder):
        saved(folder, 1)
    assert names(folder) == ["lock", "update-00000001.snapshot"]


def test_a_folder_that_cannot_be_created_is_refused_before_the_run(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainingError, match=r"cannot write to .*file"), exclusive(tmp_path / "file"):
        pytest.fail("it is a file")

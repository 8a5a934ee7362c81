"""`tutti voice`: a voice of real recordings is enrolled, listed and deleted; too little voice and two are refused."""

from __future__ import annotations

import hashlib
import json
import stat
from pathlib import Path

import numpy as np
import pytest
import soundfile
from click.testing import Result
from typer.testing import CliRunner

from model.speakers.known_voice import SAME_VOICE
from model.speakers.vectors import similarity
from server.access.keys import Key
from server.access.voices import VoiceFolder
from server.cli import app
from server.models.loading import speaker_weights
from tests.support.audio.speech import SAMPLES

OWN, OTHER = (str(SAMPLES.parent / f"{name}.flac") for name in ("demo", "number"))
LONG = [OWN] * 2


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "voices"


def voice(path: Path, command: str, *arguments: str, **variables: str) -> Result:
    return CliRunner().invoke(app, ["voice", command, *arguments], env={"TUTTI_VOICES": str(path), **variables})


def test_a_voice_is_enrolled_listed_and_deleted(path: Path) -> None:
    made = voice(path, "enroll", "ada", *LONG)
    assert made.exit_code == 0, made.output
    seconds = float(made.stdout.removeprefix("ada: enrolled from ").removesuffix(" s of voice, for every key\n"))
    assert 6 <= seconds <= 16
    (file,) = path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert voice(path, "list").stdout.startswith(f"ada: {seconds:g} s of voice, 20")
    (row,) = json.loads(voice(path, "list", "--json").stdout)["voices"]
    assert {**row, "created": ""} == {"name": "ada", "key": "", "seconds": seconds, "created": "", "usable": True}
    again = voice(path, "enroll", "ada", *LONG)
    assert (again.exit_code, again.stderr.split(";")[0]) == (1, "tutti: voice ada: enrolled before, for every key")
    assert voice(path, "delete", "ada").stdout == "ada: deleted, for every key\n"
    gone = voice(path, "delete", "ada")
    assert (gone.exit_code, gone.stderr.split(";")[0]) == (1, "tutti: voice ada: none of this name, for every key")
    assert voice(path, "list").stdout == ""


def test_recordings_of_one_voice_give_like_vectors_and_of_another_unlike_ones(path: Path) -> None:
    for name, recordings in (("own", LONG), ("other", [OTHER] * 4)):
        assert voice(path, "enroll", name, *recordings).exit_code == 0
    own, other = (np.frombuffer(one.vector, np.float32) for one in reversed(VoiceFolder(path, "any").every()))
    assert np.linalg.norm(own) == pytest.approx(1, abs=1e-3)
    assert similarity(own, other) < SAME_VOICE


def test_a_voice_of_a_key_is_bound_to_a_key_of_the_file(path: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{hashlib.sha256(b'one').hexdigest()} bank\n{hashlib.sha256(b'two').hexdigest()}\n")
    nameless = Key.of("two").id
    for key in ("bank", nameless):
        made = voice(path, "enroll", "ada", *LONG, "--key", key, TUTTI_API_KEYS_FILE=str(keys))
        assert made.stdout.endswith(f"for the key {key}\n")
    other = voice(path, "enroll", "ada", *LONG, "--key", "shop", TUTTI_API_KEYS_FILE=str(keys))
    assert other.exit_code == 1
    assert "--key shop: no key of this name or id in" in other.stderr
    folder = VoiceFolder(path, speaker_weights())
    assert len(folder.find("ada", Key(Key.of("one").digest, "bank"))) == 1_024
    assert len(folder.find("ada", Key.of("two"))) == 1_024
    assert voice(path, "delete", "ada", "--key", "bank").exit_code == 0
    assert [one.key for one in folder.every()] == [nameless]


def test_too_little_voice_is_refused_with_what_there_is(path: Path, tmp_path: Path) -> None:
    quiet = tmp_path / "quiet.wav"
    soundfile.write(quiet, np.zeros(160_000, np.int16), 16_000)
    for recording, seconds in ((OTHER, None), (str(quiet), "0")):
        made = voice(path, "enroll", "ada", recording)
        assert made.exit_code == 1
        assert made.stderr.startswith(f"tutti: only {seconds or ''}")
        assert "s of voice; at least 6 s are needed: give more recordings" in made.stderr
    assert list(path.iterdir()) == []


def test_two_voices_are_refused_with_the_file_that_has_them(path: Path, tmp_path: Path) -> None:
    both = tmp_path / "both.wav"
    parts = [soundfile.read(file, dtype="int16")[0] for file in (OWN, OTHER, OTHER)]
    soundfile.write(both, np.concatenate(parts), 16_000)
    files = voice(path, "enroll", "ada", *LONG, OTHER, OTHER)
    one = voice(path, "enroll", "ada", str(both))
    assert files.exit_code == one.exit_code == 1
    assert f"{OTHER}: another voice than in {OWN}; enroll one voice at a time" in files.stderr
    assert f"{both}: two voices, the second at " in one.stderr
    begin_s = float(one.stderr.partition("the second at ")[2].partition(" s")[0])
    assert abs(begin_s - len(parts[0]) / 16_000) < 2
    assert list(path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "status", "why"),
    [
        (["enroll", "first", OWN], 2, "NAME first: means the voice of the first words"),
        (["enroll", "../ada", OWN], 2, "NAME ../ada: must be 1 to 64 letters, digits and . _ @ -"),
        (["enroll", "ada", OWN, "--key", "a b"], 2, "--key 'a b': must be 1 to 64 letters"),
        (["enroll", "ada", "none.wav"], 2, "none.wav: no such file or folder"),
        (["enroll", "ada", str(SAMPLES)], 1, "not a supported recording"),
        (["delete", "../ada"], 2, "NAME ../ada: must be"),
    ],
)
def test_a_wrong_use_is_refused_by_name(path: Path, arguments: list[str], status: int, why: str) -> None:
    made = voice(path, *arguments)
    assert made.exit_code == status
    assert why in made.stderr
    assert not path.exists() or not list(path.iterdir())


def test_a_folder_that_cannot_be_used_is_named(path: Path) -> None:
    gone = voice(path, "list")
    assert (gone.exit_code, gone.stderr) == (
        1,
        f"tutti: --voices {path}: {path} is not a folder; `tutti voice enroll` makes it\n",
    )
    VoiceFolder.made(path, "weights").add("ada", "", b"", 7.0)
    (path / "eve.voice.json").write_text("damaged")
    assert voice(path, "list").stderr.startswith(f"tutti: --voices {path}: ")


def test_a_voice_of_other_weights_is_listed_as_such(path: Path) -> None:
    VoiceFolder.made(path, "older").add("ada", "bank", b"", 7.0)
    assert "for the key bank; made with other weights: delete it, and enroll it again" in voice(path, "list").stdout

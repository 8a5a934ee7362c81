"""`tutti receipt`, `replay`, `audit` and `keys receipt`: documents, exit codes and what they print."""

from __future__ import annotations

import base64
import hashlib
import json
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest
import soundfile
from typer.testing import CliRunner, Result

from server.cli import app
from server.receipts.keys import ReceiptKeys
from tests.support.servers.live_server import Frame
from tests.support.servers.receipted import RATE, record, shipped_server, spoken, with_keys

Call = SimpleNamespace
runner = CliRunner()


def tutti(*arguments: object) -> Result:
    return runner.invoke(app, [str(each) for each in arguments])


@pytest.fixture(scope="module")
def call(tmp_path_factory: pytest.TempPathFactory) -> Call:
    folder = tmp_path_factory.mktemp("call")
    key_file, keys = with_keys(folder)
    public = folder / "public.json"
    public.write_text(keys.as_text(private=False))
    audio = spoken("order")
    with shipped_server(key_file) as server:
        frames = record(server, audio, smart_format="true")
    return Call(audio=audio, frames=frames, public=public)


def store(folder: Path, call: Call, name: str = "call", frames: list[Frame] | None = None) -> tuple[Path, Path]:
    messages, audio = folder / f"{name}.jsonl", folder / f"{name}.wav"
    messages.write_text("\n".join(json.dumps(frame) for frame in frames or call.frames))
    soundfile.write(audio, call.audio, RATE)
    return messages, audio


def with_another_word(call: Call) -> list[Frame]:
    frames: list[Frame] = json.loads(json.dumps(call.frames))
    frames[0]["channel"]["alternatives"][0]["words"][1]["word"] = "was"
    return frames


# Documents


def test_a_vcon_document_has_the_fields_of_the_draft(call: Call, tmp_path: Path) -> None:
    messages, audio = store(tmp_path, call)
    done = tutti("receipt", messages, "--audio", audio)
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["vcon"] == "0.4.0"
    assert document["parties"] == [{"name": "anonymous"}]
    (dialog,) = document["dialog"]
    assert dialog["type"] == "recording"
    assert dialog["duration"] == pytest.approx(len(call.audio) / RATE)
    digest = base64.urlsafe_b64encode(hashlib.sha512(audio.read_bytes()).digest()).rstrip(b"=").decode()
    assert (dialog["filename"], dialog["content_hash"]) == ("call.wav", f"sha512-{digest}")
    (analysis,) = document["analysis"]
    assert (analysis["type"], analysis["dialog"], analysis["encoding"]) == ("transcript", 0, "json")
    assert (analysis["vendor"], analysis["schema"]) == ("tutti", "tutti-receipts-1")
    assert analysis["body"]["transcript"] == "0: Where is my order?"
    assert analysis["body"]["messages"] == [frame for frame in call.frames if "receipt" in frame]


def test_a_document_can_be_replayed_as_its_messages(call: Call, tmp_path: Path) -> None:
    messages, audio = store(tmp_path, call)
    assert tutti("receipt", messages, "--out", tmp_path / "call.vcon.json").exit_code == 0
    done = tutti("replay", audio, tmp_path / "call.vcon.json", "--keys", call.public)
    assert done.exit_code == 0, done.output
    assert "finals are the same; signatures are valid" in done.stdout


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no receipts"),
        ("{", "line 1 is not JSON"),
        ('{"type": "Results"}', "no receipts"),
        ('{"receipt": "a.b.c"}', "not a receipt"),
        ('{"analysis": []}', "the vCon document has no receipts of tutti"),
    ],
)
def test_other_files_are_refused_with_their_name(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "messages.jsonl"
    path.write_text(text)
    done = tutti("receipt", path)
    assert done.exit_code == 1
    assert f"{path}: {problem}" in " ".join(done.stderr.split())


# Replays


def test_a_difference_is_printed_and_is_the_exit_code(call: Call, tmp_path: Path) -> None:
    messages, audio = store(tmp_path, call, frames=with_another_word(call))
    done = tutti("replay", audio, messages, "--json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert found["signatures_checked"] is False
    assert [each["part"] for each in found["differences"]] == ["words"]


def test_the_first_stream_that_differs_ends_an_audit(call: Call, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        store(tmp_path, call, name, with_another_word(call) if name != "a" else None)
    done = tutti("audit", tmp_path, "--keys", call.public)
    assert done.exit_code == 1
    assert done.stdout.splitlines() == ["b.jsonl: words: the message of receipt 0 has other words than were signed"]


def test_an_audit_takes_a_share_of_the_streams_of_a_day(call: Call, tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d"):
        store(tmp_path, call, name)
    day = call.frames[-1]["created"][:10]
    done = tutti("audit", tmp_path, "--share", 0.5, "--day", day, "--keys", call.public)
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == "2 of 4 streams replayed: no difference"
    other = tutti("audit", tmp_path, "--day", "2020-01-01")
    assert other.exit_code == 1
    assert "no receipts of 2020-01-01" in other.stderr


def test_a_stream_without_audio_ends_an_audit(call: Call, tmp_path: Path) -> None:
    _, audio = store(tmp_path, call)
    audio.unlink()
    done = tutti("audit", tmp_path)
    assert done.exit_code == 1
    assert "0 files of audio named call.*; there must be one" in " ".join(done.stderr.split())


def test_a_day_must_be_a_day(tmp_path: Path) -> None:
    assert tutti("audit", tmp_path, "--day", "today").exit_code == 2


# Keys


def test_a_new_key_signs_and_the_old_one_still_verifies(tmp_path: Path) -> None:
    path = tmp_path / "key.json"
    first = tutti("keys", "receipt", "--file", path)
    assert first.exit_code == 0, first.output
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    signed = ReceiptKeys.load(path).sign(b"old")
    assert '"d"' not in first.stdout
    second = tutti("keys", "receipt", "--file", path)
    public = ReceiptKeys.read(second.stdout)
    assert public.verify(signed) == b"old"
    assert public.verify(ReceiptKeys.load(path).sign(b"new")) == b"new"
    assert tutti("keys", "receipt", "--file", path, "--public").stdout == second.stdout
    assert sorted(tmp_path.iterdir()) == [path]


def test_a_file_that_is_no_key_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "key.json"
    path.write_text("something else")
    done = tutti("keys", "receipt", "--file", path)
    assert done.exit_code == 1
    assert "expected a JSON Web Key of type Ed25519" in " ".join(done.stderr.split())
    assert path.read_text() == "something else"

"""Usage records of a running server: every protocol, uploads, resumed and killed streams, drains, metrics by key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner
from websockets.sync.client import connect

from server.cli import app
from server.resume.tickets import new_key
from server.usage.record import UsageRecord, record_of
from tests.server.protocols.test_redaction_server import SOCKETS, said
from tests.support.clients.realtime_client import speak, until_transcript, update
from tests.support.clients.resume_client import ResumingClient
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import Client, LiveServer
from tests.support.servers.recognizers.spelling import CONFIG, silence, spell
from tests.support.servers.server_process import ServerProcess
from tests.support.servers.two_models import two_models
from tests.support.servers.uploaded import encoded

Start = Callable[..., LiveServer]
STEP_S = CONFIG.step_samples / CONFIG.sample_rate
SECRET, SPOKEN = "s3cret-of-the-bank", "unspeakable"
HEADERS = {"Authorization": f"Token {SECRET}"}


def read(folder: Path) -> list[UsageRecord]:
    return [record_of(line) for path in sorted(folder.iterdir()) for line in path.read_bytes().splitlines()]


def flushed(server: LiveServer, folder: Path) -> list[UsageRecord]:
    """Return the records of all ended streams; the log takes no more afterwards."""
    server.wait_idle()
    server.replica.usage.close()
    return read(folder)


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    """Write a keys file with two keys, of which one has a name."""
    path = tmp_path / "keys"
    path.write_text("\n".join(f"{hashlib.sha256(key.encode()).hexdigest()} {name}" for key, name in KEYS))
    return path


KEYS = ((SECRET, "bank"), ("of the shop", ""))


def test_a_stream_leaves_one_record_without_its_text_and_its_key(
    live_server: Start, keys_file: Path, tmp_path: Path
) -> None:
    server = live_server(api_keys_file=keys_file, usage_log=tmp_path / "usage")
    audio = np.concatenate([spell(SPOKEN), silence(1.0)])
    query = {"interim_results": "true", "smart_format": "true", "redact": "pci"}
    with server.listen(HEADERS, **query) as client:
        client.send(audio)
        request_id = client.finish()[-1]["request_id"]
    (record,) = flushed(server, tmp_path / "usage")
    assert record.to_s == (pytest.approx(len(audio) / 16_000, abs=1e-6),)
    assert (record.stream, record.request_id, record.from_s) == (request_id, request_id, 0.0)
    assert (record.key, record.kind, record.protocol, record.reason) == ("bank", "live", "deepgram", "close_stream")
    assert record.features == ("interim_results", "redact", "punctuate", "numerals")
    assert (record.model, record.start <= record.end) == (next(iter(server.replica.models)).name, True)
    text = "".join(path.read_text() for path in (tmp_path / "usage").iterdir())
    assert record.key_id
    for hidden in (SECRET, hashlib.sha256(SECRET.encode()).hexdigest(), SPOKEN):
        assert hidden not in text


@pytest.mark.parametrize("protocol", SOCKETS)
def test_streams_of_every_protocol_are_recorded(live_server: Start, tmp_path: Path, protocol: str) -> None:
    server = live_server(usage_log=tmp_path / "usage")
    said(server, protocol, "hello there")
    (record,) = flushed(server, tmp_path / "usage")
    assert record.protocol == {"listen": "deepgram"}.get(protocol, protocol)
    assert record.to_s[0] > len(spell("hello there")) / 16_000
    assert "accurate" not in record.features  # a stream that can be forked has no second pass


def test_a_call_with_two_channels_is_one_stream_of_two_channels(live_server: Start, tmp_path: Path) -> None:
    server = live_server(usage_log=tmp_path / "usage")
    audio = np.stack([spell("one"), spell("one")], axis=1)
    with server.listen(channels=2, multichannel="true") as client:
        client.send(audio)
        client.finish()
    with server.http as http:
        body = encoded(audio, "WAV")
        assert http.post("/v1/listen", params={"multichannel": "true"}, content=body).status_code == 200
        files = {"file": ("a.wav", body)}
        assert http.post("/v1/audio/transcriptions", files=files, data={"model": "x"}).status_code == 200
    live, upload, mixed = flushed(server, tmp_path / "usage")
    length_s = pytest.approx(len(audio) / 16_000, abs=1e-6)
    assert (live.to_s, upload.to_s, mixed.to_s) == ((length_s, length_s), (length_s, length_s), (length_s,))
    assert (upload.kind, upload.protocol, upload.reason) == ("upload", "deepgram", "completed")
    assert (mixed.kind, mixed.protocol) == ("upload", "openai")
    assert "multichannel" in upload.features


def test_the_model_of_a_session_that_changes_it_is_recorded(live_server: Start, tmp_path: Path) -> None:
    server = live_server(model=two_models(), usage_log=tmp_path / "usage")
    with connect(f"ws://{server.host}/v1/realtime?intent=transcription", proxy=None) as socket:
        update(socket, transcription={"model": "es"}, turn_detection=None)
        speak(socket, "hola")
        until_transcript(socket)
    (record,) = flushed(server, tmp_path / "usage")
    assert (record.model, record.language) == ("es", "es")


def test_refused_requests_leave_no_record(live_server: Start, keys_file: Path, tmp_path: Path) -> None:
    server = live_server(api_keys_file=keys_file, usage_log=tmp_path / "usage")
    with server.http as http:
        assert http.post("/v1/listen", content=b"x").status_code == 401
        assert http.post("/v1/listen", content=b"no audio", headers=HEADERS).status_code == 400
    assert not flushed(server, tmp_path / "usage")


def test_a_drained_stream_and_a_lost_one_are_recorded(live_server: Start, tmp_path: Path) -> None:
    server = live_server(usage_log=tmp_path / "usage", drain_timeout_s=0.0)
    with server.listen() as lost:
        lost.send(spell("gone"))
        lost.say("Finalize")
        lost.receive()
        lost.vanish()
    server.wait_idle()
    with server.listen() as drained:
        drained.send(spell("drained"))
        drained.say("Finalize")
        drained.until(lambda frame: frame.get("from_finalize", False))
        assert server.http.post("/admin/drain").status_code == 202
        drained.rest()
    server.join()
    assert [record.reason for record in read(tmp_path / "usage")] == ["client_gone", "drain"]


# Several servers


class KillingClient(ResumingClient):
    """Kills the first server, without a close of the connection."""

    def _stream(self, client: Client, position: int, loss_s: float | None) -> None:
        super()._stream(client, position, loss_s)
        if client.socket.remote_address[1] == self._servers[0].port:  # type: ignore[union-attr]
            self._servers[0].process.kill()  # type: ignore[union-attr]
            self._servers[0].process.wait(WAIT_S)  # type: ignore[union-attr]


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[ServerProcess]]:
    """Start three server processes with usage logs, one in a folder of its own."""
    key, folders = new_key(), ("a", "b", "b")
    with ExitStack() as stack:
        yield [stack.enter_context(ServerProcess(usage_log=str(tmp_path / name), resume_keys=key)) for name in folders]


def test_usage_over_three_servers_of_which_one_is_killed_is_what_was_sent(
    three: list[ServerProcess], tmp_path: Path
) -> None:
    audio = np.concatenate([part for word in ("one", "two", "three", "four") for part in (spell(word), silence(1.2))])
    moved = KillingClient(three, audio[:, None], 16_000).run([3.1, 4.9])
    assert moved.tickets > 4
    with three[1].listen() as client:
        client.send(spell("another stream"))
        client.finish()
    for server in three[1:]:
        server.stop(15)
    done = CliRunner().invoke(app, ["usage", str(tmp_path / "a"), str(tmp_path / "b"), "--json"])
    assert done.exit_code == 0, done.output
    total = json.loads(done.stdout.splitlines()[-1])["total"]
    sent_s = (len(audio) + len(spell("another stream"))) / 16_000
    assert total["seconds"] == pytest.approx(sent_s, abs=STEP_S)
    assert (total["streams"], total["unfinished"]) == (2, 0)
    killed = read(tmp_path / "a")
    assert {record.reason for record in killed} == {"open"}
    resumed = [record for record in read(tmp_path / "b") if record.from_s > 0]
    assert {record.stream for record in resumed} == {killed[0].stream}


# Metrics by key


def by_key(server: LiveServer, metric: str) -> dict[str, float]:
    rows = [row for row in server.http.get("/metrics").text.splitlines() if row.startswith(f"{metric}{{")]
    return {row.partition('key="')[2].partition('"')[0]: float(row.rsplit(" ", 1)[1]) for row in rows}


def test_metrics_by_key_are_bounded_and_off_by_default(live_server: Start, keys_file: Path) -> None:
    counted = live_server(api_keys_file=keys_file, metrics_by_key=1)
    plain = live_server(api_keys_file=keys_file)
    for server in (counted, plain):
        for key, _ in KEYS:
            with server.listen({"Authorization": f"Token {key}"}) as client:
                client.send(spell("hello"))
                client.finish()
        server.wait_idle()
    assert by_key(counted, "tutti_key_calls_total") == {"bank": 1.0, "other": 1.0}
    length_s = len(spell("hello")) / 16_000
    assert by_key(counted, "tutti_key_audio_seconds_total") == {"bank": length_s, "other": length_s}
    assert "tutti_key_" not in plain.http.get("/metrics").text

"""`speaker=NAME` at `/v1/listen`: an enrolled voice is listened to, live, in recordings and in a resumed stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.exceptions import InvalidStatus

from server.access.keys import Key
from server.access.voices import UNKNOWN, VoiceFolder
from server.models.loading import speaker_weights
from server.recognition.steps import Auxiliary
from server.resume.tickets import new_key
from tests.server.protocols.deepgram.test_deepgram_speakers import SPOKEN, TALK, words_of
from tests.support.clients.resume_client import ResumingClient
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers.voices import SIZE, Voices
from tests.support.servers.uploaded import encoded

KEY, OTHER = "k3y-of-the-bank", "k3y-of-the-shop"
RESUME_KEY = new_key()
BANK, SHOP = ({"Authorization": f"Token {key}"} for key in (KEY, OTHER))


def vector(voice: int) -> bytes:
    """Return the vector that `Voices` gives to a voice."""
    return np.eye(SIZE, dtype=np.float32)[voice].tobytes()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("voices")


@pytest.fixture
def folder(path: Path) -> Iterator[VoiceFolder]:
    """The voices Ada (the second of the talk) of the bank, and Bob (the first) of everyone."""
    folder = VoiceFolder(path, speaker_weights())
    folder.add("ada", Key.of(KEY).id, vector(1), 21.0)
    folder.add("bob", "", vector(0), 21.0)
    yield folder
    for file in path.iterdir():
        file.unlink()


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[LiveServer]:
    with speaking(path, api_keys=(KEY, OTHER)) as running:
        yield running


def speaking(path: Path, **settings: Any) -> LiveServer:
    auxiliary = {Auxiliary.SPEAKERS: Voices()}
    return LiveServer(speakers=True, voices=path, auxiliary=auxiliary, resume_keys=(RESUME_KEY,), **settings)


def live(server: LiveServer, headers: dict[str, str], **query: Any) -> list[dict[str, Any]]:
    with server.listen(headers, **query) as client:
        for at in range(0, len(TALK), 3_000):
            client.send(np.ascontiguousarray(TALK[at : at + 3_000]))
        return client.finish()


def upload(server: LiveServer, headers: dict[str, str], **query: Any) -> httpx.Response:
    with server.http as http:
        return http.post("/v1/listen", params=query, content=encoded(TALK, "WAV"), headers=headers)


def refused(server: LiveServer, headers: dict[str, str], **query: Any) -> str:
    with pytest.raises(InvalidStatus) as denial, server.listen(headers, **query):
        pass
    body = httpx.Response(400, content=bytes(denial.value.response.body or b"")).json()
    answer = upload(server, headers, **query)
    assert denial.value.response.status_code == answer.status_code == 400
    assert answer.json()["err_msg"] == body["err_msg"]
    return str(body["err_msg"])


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("name", "own"), [("ada", 1), ("bob", 0)])
@pytest.mark.parametrize("alone", [False, True])
def test_words_of_others_than_the_enrolled_voice_are_marked_or_left_out(
    server: LiveServer, name: str, own: int, alone: bool
) -> None:
    query = {"speaker": name, "speaker_only": str(alone).lower()}
    expected = [(word, voice != own) for word, voice in SPOKEN if not (alone and voice != own)]
    label = f'tutti_other_voice_words_total{{model="spelling",outcome="{"left_out" if alone else "marked"}"}}'
    before = server.metric(label)
    frames = live(server, BANK, **query, interim_results="true")
    answer = upload(server, BANK, **query, endpointing="true").json()
    for words in (words_of(frames), answer["results"]["channels"][0]["alternatives"][0]["words"]):
        assert [(word["word"], word.get("other_voice", False)) for word in words] == expected
    others = sum(voice != own for _, voice in SPOKEN)
    assert frames[-1]["other_voice_words"] == answer["metadata"]["other_voice_words"] == others
    server.wait_idle()
    assert server.metric(label) == before + 2 * others


@pytest.mark.usefixtures("folder")
def test_names_of_other_keys_are_refused_like_names_that_do_not_exist(server: LiveServer) -> None:
    assert {refused(server, SHOP, speaker=name) for name in ("ada", "unknown", "Ada", "a/b")} == {UNKNOWN}
    assert [word.get("other_voice", False) for word in words_of(live(server, SHOP, speaker="bob"))] == [
        bool(voice) for _, voice in SPOKEN
    ]


def test_a_running_server_sees_voices_that_are_enrolled_and_deleted(server: LiveServer, folder: VoiceFolder) -> None:
    assert refused(server, SHOP, speaker="eve") == UNKNOWN
    folder.add("eve", Key.of(OTHER).id, vector(1), 21.0)
    with server.listen(SHOP, speaker="eve") as client:
        folder.delete("eve", Key.of(OTHER).id)
        client.send(TALK)
        words = words_of(client.finish())
    assert [word.get("other_voice", False) for word in words] == [not voice for _, voice in SPOKEN], "until it ends"
    assert refused(server, SHOP, speaker="eve") == UNKNOWN


def test_a_token_of_a_key_has_its_voices(server: LiveServer, folder: VoiceFolder) -> None:
    del folder
    with server.http as http:
        token = http.post("/v1/auth/grant", headers=BANK).json()["access_token"]
    words = words_of(live(server, {"Authorization": f"Bearer {token}"}, speaker="ada"))
    assert [word.get("other_voice", False) for word in words] == [not voice for _, voice in SPOKEN]


def test_a_voice_of_other_weights_is_refused(server: LiveServer, path: Path) -> None:
    older = VoiceFolder(path, "older weights")
    older.add("old", "", vector(1), 21.0)
    try:
        assert refused(server, BANK, speaker="old").startswith("speaker: this voice was enrolled with other weights")
    finally:
        older.delete("old", "")


def test_a_server_without_keys_has_the_voices_of_every_key(path: Path, folder: VoiceFolder) -> None:
    del folder
    with speaking(path) as keyless:
        assert sum(word.get("other_voice", False) for word in words_of(live(keyless, {}, speaker="bob"))) == 6
        assert refused(keyless, {}, speaker="ada") == UNKNOWN


def test_a_server_without_a_folder_knows_no_names() -> None:
    auxiliary = {Auxiliary.SPEAKERS: Voices()}
    with LiveServer(speakers=True, auxiliary=auxiliary) as running:
        assert refused(running, {}, speaker="bob") == (
            "speaker: 'bob' is not valid; must be first, the voice of the first words"
        )


def test_a_resumed_stream_keeps_its_voice_by_its_name(path: Path, folder: VoiceFolder) -> None:
    folder.add("eve", "", vector(1), 21.0)
    query = {"speaker": "eve", "speaker_only": "true", "vad_events": "true"}
    with ExitStack() as stack:
        pair = [stack.enter_context(speaking(path)) for _ in range(2)]
        whole = ResumingClient([pair[0]], TALK[:, None], 16_000, **query).run(())
        moved = ResumingClient(pair, TALK[:, None], 16_000, **query).run([1.7, 3.3, 4.21, 6.9])
        assert [word["word"] for word in words_of(whole.finals)] == [word for word, voice in SPOKEN if voice]
        assert moved.results == whole.results
        held = moved.ticket
        assert held is not None
        folder.delete("eve", "")
        with pytest.raises(InvalidStatus), pair[0].listen(resumable="true", channels=1, **query):
            pass
        folder.add("eve", "", vector(0), 21.0)
        with pair[0].listen(resumable="true", channels=1, **query) as client:
            client.say("Resume", ticket=held["ticket"], finals=0)
            answer = client.receive()
        assert (answer["type"], answer["code"]) == ("ResumeRefused", "TICKET_TENANT")

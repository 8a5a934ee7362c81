"""Published models whose words in noise are dropped: live streams, uploads and turns, alone, in company and resumed."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server.configuration.models_file import ModelEntry
from server.errors import SettingsError
from server.models.loading import LoadedModel, load_local
from server.resume.tickets import new_key
from server.settings import Settings
from server.tools.local import open_replica
from tests.server.models.test_published_server import finals_of, speech
from tests.support.clients.resume_client import ResumingClient
from tests.support.networks.published import at_rate, model_of, probe_of
from tests.support.protocols.wire_stream import WireStream
from tests.support.servers.live_server import LiveServer, transcript

KINDS = ["zipformer2-ctc", "t-one-ctc", "zipformer2-transducer", "nemo-transducer", "nemo-buffered-transducer"]


@cache
def loaded(kind: str, drop: bool | None) -> LoadedModel:
    """The probe of a kind, loaded as a server loads an entry of its models."""
    path = Path(probe_of(kind).folder)
    entry = ModelEntry(name="noisy", path=path, drop_words_in_noise=drop)
    return load_local(entry, Settings(model=path, device="cpu"))


@cache
def hiss(kind: str) -> np.ndarray:
    """Three seconds of white noise."""
    noise = np.random.default_rng(7).standard_normal(3 * model_of(kind).config.sample_rate)
    return np.rint(3_000 * noise).astype(np.int16)


@cache
def mixed(kind: str) -> np.ndarray:
    """Noise, speech, noise."""
    spoken = speech(16_000) if model_of(kind).config.sample_rate == 16_000 else at_rate(model_of(kind), speech(16_000))
    return np.concatenate([hiss(kind), spoken[: len(spoken) // 3], hiss(kind)])


def streamed(server: LiveServer, kind: str, pcm: np.ndarray, size: int) -> str:
    with server.listen(sample_rate=model_of(kind).config.sample_rate, endpointing="false") as client:
        for at in range(0, len(pcm), size):
            client.send(pcm[at : at + size])
        return transcript(finals_of(client.finish()))


def uploaded(server: LiveServer, kind: str, pcm: np.ndarray) -> str:
    query = {"encoding": "linear16", "sample_rate": model_of(kind).config.sample_rate}
    answer = server.http.post("/v1/listen", params=query, content=pcm.tobytes()).json()
    return str(answer["results"]["channels"][0]["alternatives"][0]["transcript"])


@pytest.mark.parametrize("kind", KINDS)
def test_no_word_is_written_in_noise_and_the_others_are_kept(kind: str) -> None:
    with LiveServer(model=[loaded(kind, None)]) as server:
        assert streamed(server, kind, hiss(kind), 4_000)
        every = uploaded(server, kind, mixed(kind)).split()
    with LiveServer(model=[loaded(kind, True)]) as server:
        assert streamed(server, kind, hiss(kind), 4_000) == uploaded(server, kind, hiss(kind)) == ""
        texts = {streamed(server, kind, mixed(kind), size) for size in (777, len(mixed(kind)))}
        texts.add(uploaded(server, kind, mixed(kind)))
        together = _together(server, kind)
    (text,) = texts
    assert together == [text] * 3
    rest = iter(every)
    assert all(word in rest for word in text.split()), "the words of the model in their order, without some"
    assert 0 < len(text.split()) < len(every)


def _together(server: LiveServer, kind: str) -> list[str]:
    """Texts of three streams at once."""
    pcm, rate = mixed(kind), model_of(kind).config.sample_rate
    with ExitStack() as stack:
        clients = [stack.enter_context(server.listen(sample_rate=rate, endpointing="false")) for _ in range(3)]
        for at in range(0, len(pcm), 1_280):
            for client in clients:
                client.send(pcm[at : at + 1_280])
        return [transcript(finals_of(client.finish())) for client in clients]


def test_no_turn_starts_in_noise() -> None:
    def turns(drop: bool | None) -> int:
        with LiveServer(model=[loaded("nemo-transducer", drop)]) as server, WireStream(server, "flux") as stream:
            stream.send(hiss("nemo-transducer").tobytes())
            stream.send({"type": "CloseStream"})
            stream.rest()
        return sum(frame.get("event") == "StartOfTurn" for frame in stream.frames)

    assert turns(True) == 0 < turns(None)


def test_a_resumed_stream_has_the_finals_of_an_unbroken_one() -> None:
    kind, options = "nemo-transducer", {"resume_keys": (new_key(),)}
    with ExitStack() as stack:
        pair = [stack.enter_context(LiveServer(model=[loaded(kind, True)], **options)) for _ in range(2)]
        whole = ResumingClient([pair[0]], mixed(kind)[:, None], 16_000).run(())
        moved = ResumingClient(pair, mixed(kind)[:, None], 16_000).run([2.3, 4.4])
    assert moved.results == whole.results
    assert transcript(whole.finals)


def test_a_server_without_the_option_does_not_resume_a_stream_with_it() -> None:
    """Its states have no levels of the audio, and its texts would be others."""
    kept, dropped = (loaded("nemo-transducer", drop) for drop in (None, True))
    assert kept.facts.digest != dropped.facts.digest
    assert loaded("nemo-transducer", False).facts == kept.facts


async def test_a_program_that_runs_one_model_without_a_server_drops_them_too() -> None:
    entry = ModelEntry(name="noisy", path=Path(probe_of("t-one-ctc").folder), drop_words_in_noise=True)
    async with open_replica(Settings(models=(entry,), device="cpu")) as replica:
        assert replica.models.default.config.doubts_steady_audio


def test_the_option_is_refused_for_a_model_of_this_project() -> None:
    entry: Any = ModelEntry(name="en", path=Path("tutti-gru"), drop_words_in_noise=False)
    with pytest.raises(SettingsError, match="models: 'en': drop_words_in_noise is for published models"):
        load_local(entry, Settings().of_model(entry))

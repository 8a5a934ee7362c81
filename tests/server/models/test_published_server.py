"""Published models in the real server, as graphs and as compiled steps: the text of a stream is that without a server.

That text is sherpa-onnx's: `tests/model/published/test_parity.py`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from websockets.exceptions import InvalidStatus

from model.acoustic import log_probs_of
from model.published.published_model import PublishedModel
from server.models.loading import LoadedModel
from server.resume.tickets import new_key
from tests.support.clients.resume_client import ResumingClient
from tests.support.networks.compiled import SIZES, compiled_folder, compiled_model
from tests.support.networks.probes import KINDS
from tests.support.networks.published import at_rate, decoder_for, model_of
from tests.support.servers.live_server import LiveServer, transcript

SAMPLES = Path(__file__).parents[3] / "model" / "samples"
COMPILED = [f"compiled {kind}" for kind in SIZES]
MODELS = [*KINDS, *COMPILED]
Start = Callable[..., LiveServer]


def model(name: str) -> PublishedModel:
    kind = name.removeprefix("compiled ")
    return model_of(name) if kind == name else compiled_model(kind)


@pytest.fixture
def served(live_server: Start) -> Callable[..., LiveServer]:
    return lambda name, **options: live_server(model=model(name), decoder=decoder_for(model(name)), **options)


@cache
def speech(rate: int) -> np.ndarray:
    pcm: np.ndarray = soundfile.read(SAMPLES / "demo.flac", dtype="int16")[0]
    return pcm if rate == 16_000 else at_rate(model("t-one-ctc"), pcm)


def speech_for(name: str) -> np.ndarray:
    return speech(model(name).config.sample_rate)


def words_of(name: str, pcm: np.ndarray) -> tuple[str, list[float]]:
    """Text of a recording without a server, without spaces, and the times at which its words begin."""
    config, decoder = model(name).config, decoder_for(model(name))
    (frames,) = log_probs_of(model(name), [pcm])
    state = decoder.start(config.delay_frames)
    decoder.advance([state], frames[np.newaxis])
    words = decoder.take(state)
    return squeezed("".join(word.text for word in words)), [word.start_s for word in words]


def squeezed(text: str) -> str:
    return "".join(text.split())


def finals_of(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [frame for frame in frames if frame["type"] == "Results" and frame["is_final"]]


def listen(server: LiveServer, name: str, pcm: np.ndarray, sizes: Callable[[], int], **query: Any) -> Any:
    """Stream it in messages of any number of samples; return the finals."""
    with server.listen(sample_rate=model(name).config.sample_rate, endpointing="false", **query) as client:
        at = 0
        while at < len(pcm):
            size = sizes()
            client.send(pcm[at : at + size])
            at += size
        return finals_of(client.finish())


@pytest.mark.parametrize("name", [*MODELS, "zipformer-chinese"])
def test_text_and_times_of_streams_and_uploads_are_those_without_a_server(served: Any, name: str) -> None:
    assert (model(name).compiled is not None) == (name in COMPILED)
    pcm, rate, dice = speech_for(name), model(name).config.sample_rate, random.Random(4)
    text, times = words_of(name, pcm)
    assert text
    server = served(name)
    for sizes in (lambda: 777, lambda: dice.randrange(1, 4_000)):
        finals = listen(server, name, pcm, sizes)
        assert squeezed(transcript(finals)) == text
        starts = [word["start"] for final in finals for word in final["channel"]["alternatives"][0]["words"]]
        last = max(at for at in times if at < len(pcm) / rate)  # later words are moved to the end of the audio
        if len(set(times)) == len(times) or name != "compiled nemo-transducer":
            assert all(min(abs(start - at) for at in times) < 0.002 for start in starts if start < last)
        else:  # several words begin in one frame: the later ones are moved
            assert all(start > at - 0.002 for start, at in zip(starts, times, strict=True) if start < last)
    query = {"encoding": "linear16", "sample_rate": rate}
    answer = server.http.post("/v1/listen", params=query, content=pcm.tobytes()).json()
    assert answer["results"]["channels"][0]["alternatives"][0]["transcript"] == transcript(finals)


@pytest.mark.parametrize("name", MODELS)
def test_finalize_begins_anew_at_the_next_sample(served: Any, name: str) -> None:
    pcm = speech_for(name)
    border = len(pcm) // 2 + 123
    with served(name).listen(sample_rate=model(name).config.sample_rate, endpointing="false") as client:
        client.send(pcm[:border])
        client.say("Finalize")
        client.send(pcm[border:])
        text = squeezed(transcript(finals_of(client.finish())))
    assert text == words_of(name, pcm[:border])[0] + words_of(name, pcm[border:])[0]


@pytest.mark.parametrize("name", MODELS)
def test_a_stream_that_is_cut_and_resumed_elsewhere_has_the_finals_of_an_unbroken_one(name: str) -> None:
    options = {"model": model(name), "decoder": decoder_for(model(name)), "resume_keys": (new_key(),)}
    pcm, rate = speech_for(name), model(name).config.sample_rate
    with ExitStack() as stack:
        pair = [stack.enter_context(LiveServer(**options)) for _ in range(2)]
        whole = ResumingClient([pair[0]], pcm[:, None], rate).run(())
        moved = ResumingClient(pair, pcm[:, None], rate).run([1.7, 3.1, 3.4, 6.2])
    assert whole.tickets >= 2
    assert moved.results == whole.results
    assert any(final["channel"]["alternatives"][0]["words"] for final in whole.finals)


def test_a_ticket_of_the_floats_is_refused_by_the_8_bit_step_and_names_the_reason() -> None:
    """Their states have other forms: the digests differ, although the files are the same."""
    key = new_key()
    floats = PublishedModel.load(compiled_folder("nemo-ctc"), device="cpu", precision="fp32")
    compiled = compiled_model("nemo-ctc")
    assert floats.digest != compiled.digest
    with (
        LiveServer(model=floats, decoder=decoder_for(floats), resume_keys=(key,)) as before,
        LiveServer(model=compiled, decoder=decoder_for(compiled), resume_keys=(key,)) as after,
    ):
        with before.listen(sample_rate=16_000, resumable="true") as client:
            client.send(speech(16_000)[:48_000])
            ticket = client.until(lambda frame: frame["type"] == "Ticket")[-1]["ticket"]
        with after.listen(sample_rate=16_000, resumable="true") as client:
            client.say("Resume", ticket=ticket, finals=0)
            refused = client.receive()
    assert (refused["type"], refused["code"]) == ("ResumeRefused", "TICKET_MODEL")
    reason = "the ticket is for another model, precision, decoder, voice-activity setting or speaker model"
    assert reason in refused.values()


def test_a_stream_whose_state_fits_no_ticket_is_not_resumable(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "compiled nemo-ctc"
    server, state_bytes = served(name), model(name).slots(capacity=1, largest=1).state_bytes
    monkeypatch.setattr("server.models.service.MOST_STATE_BYTES", state_bytes)
    with server.listen(resumable="true") as client:
        client.finish()
    monkeypatch.setattr("server.models.service.MOST_STATE_BYTES", state_bytes - 1)
    with pytest.raises(InvalidStatus) as refused:
        server.listen(resumable="true")
    assert refused.value.response.status_code == 400
    assert re.search(
        r"resumable: the state of a stream of model '.*' has 0\.\d MiB, but a ticket holds at most 0\.\d+ MiB",
        (refused.value.response.body or b"").decode(),
    )


@pytest.mark.parametrize("name", ["zipformer2-ctc", "nemo-ctc", "t-one-ctc", "zipformer-chinese"])
def test_key_terms_are_refused_by_name_where_a_model_has_none(served: Any, name: str) -> None:
    server = served(name)
    with pytest.raises(InvalidStatus) as refused:
        server.listen(keyterm="okonkwo")
    assert refused.value.response.status_code == 400
    body = (refused.value.response.body or b"").decode()
    assert "keyterm" in body
    of_letters = "its symbols do not spell words" if name == "zipformer-chinese" else "--decoder beam takes them"
    assert of_letters in body
    posted = server.http.post("/v1/listen", params={"keyterm": "okonkwo"}, content=b"")
    assert posted.status_code == 400


@pytest.mark.parametrize("name", ["zipformer2-ctc", "compiled zipformer2-transducer"])
def test_texts_of_many_streams_do_not_depend_on_one_another(served: Any, name: str) -> None:
    """Streams of two lengths at once, in messages of 80 ms, and each alone."""
    server, pcm, lengths = served(name), speech(16_000), (60_000, 90_000)
    alone = {length: transcript(listen(server, name, pcm[:length], lambda: 1_280)) for length in lengths}
    with ExitStack() as stack:
        clients = [stack.enter_context(server.listen(endpointing="false")) for _ in range(24)]
        for at in range(0, 90_000, 1_280):
            for number, client in enumerate(clients):
                part = pcm[at : min(at + 1_280, lengths[number % 2])]
                if len(part):
                    client.send(part)
        texts = [transcript(finals_of(client.finish())) for client in clients]
    assert texts == [alone[lengths[number % 2]] for number in range(24)]


def test_models_of_two_rates_are_chosen_by_language(live_server: Start) -> None:
    """The shipped rate and that of telephones in one replica; a language of neither is refused."""
    names = {"en": "compiled zipformer2-ctc", "ru": "t-one-ctc", "de": "compiled nemo-ctc"}
    models = [
        LoadedModel.of(model(name), decoder_for(model(name)), name, (language,)) for language, name in names.items()
    ]
    server = live_server(model=models)
    for language, name in (("en-US", names["en"]), ("ru", names["ru"]), ("de", names["de"])):
        pcm = speech_for(name)
        finals = listen(server, name, pcm, lambda: 1_000, language=language)
        assert squeezed(transcript(finals)) == words_of(name, pcm)[0]
    with pytest.raises(InvalidStatus) as refused:
        server.listen(language="fr")
    assert refused.value.response.status_code == 400

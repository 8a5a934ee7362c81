"""Published models with a compiled step in the real server: messages, Finalize, uploads, tickets, two models."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from model.acoustic import log_probs_of
from model.published.published_model import PublishedModel
from server.models.loading import LoadedModel
from server.resume.tickets import new_key
from tests.support.clients.resume_client import ResumingClient
from tests.support.networks.compiled import SIZES, compiled_folder, compiled_model
from tests.support.networks.published import decoder_for
from tests.support.servers.live_server import LiveServer, transcript

SAMPLES = Path(__file__).parents[3] / "model" / "samples"
Start = Callable[..., LiveServer]


def speech() -> np.ndarray:
    return soundfile.read(SAMPLES / "demo.flac", dtype="int16")[0]


def text_of(kind: str, pcm: np.ndarray) -> str:
    """Text of a recording without a server, without spaces."""
    model = compiled_model(kind)
    decoder = decoder_for(model)
    (frames,) = log_probs_of(model, [pcm])
    state = decoder.start(model.config.delay_frames)
    decoder.advance([state], frames[np.newaxis])
    return squeezed("".join(word.text for word in decoder.take(state)))


def squeezed(text: str) -> str:
    return "".join(text.split())


def finals_of(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [frame for frame in frames if frame["type"] == "Results" and frame["is_final"]]


def listen(server: LiveServer, pcm: np.ndarray, sizes: Callable[[], int], **query: Any) -> str:
    with server.listen(sample_rate=16_000, endpointing="false", **query) as client:
        at = 0
        while at < len(pcm):
            size = sizes()
            client.send(pcm[at : at + size])
            at += size
        return squeezed(transcript(finals_of(client.finish())))


@pytest.fixture
def served(live_server: Start) -> Callable[..., LiveServer]:
    def start(kind: str, **options: Any) -> LiveServer:
        return live_server(model=compiled_model(kind), decoder=decoder_for(compiled_model(kind)), **options)

    return start


@pytest.mark.parametrize("kind", SIZES)
def test_the_step_is_compiled_and_a_stream_and_an_upload_have_the_text_without_a_server(served: Any, kind: str) -> None:
    assert compiled_model(kind).compiled is not None
    pcm, dice = speech(), random.Random(4)
    expected = text_of(kind, pcm)
    assert expected
    server = served(kind)
    for sizes in (lambda: 777, lambda: dice.randrange(1, 4_000)):
        assert listen(server, pcm, sizes) == expected
    query = {"encoding": "linear16", "sample_rate": 16_000}
    answer = server.http.post("/v1/listen", params=query, content=pcm.tobytes()).json()
    assert squeezed(answer["results"]["channels"][0]["alternatives"][0]["transcript"]) == expected


@pytest.mark.parametrize("kind", SIZES)
def test_finalize_begins_anew_at_the_next_sample(served: Any, kind: str) -> None:
    pcm = speech()
    border = len(pcm) // 2 + 123
    with served(kind).listen(sample_rate=16_000, endpointing="false") as client:
        client.send(pcm[:border])
        client.say("Finalize")
        client.send(pcm[border:])
        found = squeezed(transcript(finals_of(client.finish())))
    assert found == text_of(kind, pcm[:border]) + text_of(kind, pcm[border:])


@pytest.mark.parametrize("kind", SIZES)
def test_a_stream_that_is_cut_and_resumed_elsewhere_has_the_finals_of_an_unbroken_one(kind: str) -> None:
    model, pcm, key = compiled_model(kind), speech(), new_key()
    with ExitStack() as stack:
        pair = [
            stack.enter_context(LiveServer(model=model, decoder=decoder_for(model), resume_keys=(key,)))
            for _ in range(2)
        ]
        whole = ResumingClient([pair[0]], pcm[:, None], 16_000).run(())
        moved = ResumingClient(pair, pcm[:, None], 16_000).run([1.7, 3.1, 3.4, 6.2])
    assert whole.tickets >= 5
    assert moved.results == whole.results
    assert any(final["channel"]["alternatives"][0]["words"] for final in whole.finals)


def test_a_ticket_of_the_graph_is_refused_by_the_compiled_step_and_names_the_reason() -> None:
    """Their states have other forms: the digests differ, although files and scales are the same."""
    kind, key = "nemo-ctc", new_key()
    graph = PublishedModel.load(compiled_folder(kind), device="cpu", precision="fp32")
    compiled = compiled_model(kind)
    assert graph.digest != compiled.digest
    with (
        LiveServer(model=graph, decoder=decoder_for(graph), resume_keys=(key,)) as before,
        LiveServer(model=compiled, decoder=decoder_for(compiled), resume_keys=(key,)) as after,
    ):
        with before.listen(sample_rate=16_000, resumable="true") as client:
            client.send(speech()[:48_000])
            ticket = client.until(lambda frame: frame["type"] == "Ticket")[-1]["ticket"]
        with after.listen(sample_rate=16_000, resumable="true") as client:
            client.say("Resume", ticket=ticket, finals=0)
            refused = client.receive()
    assert (refused["type"], refused["code"]) == ("ResumeRefused", "TICKET_MODEL")
    assert "the ticket is for another model, precision, decoder or voice-activity setting" in refused.values()


def test_two_models_in_one_replica_are_chosen_by_language(live_server: Start) -> None:
    kinds = {"en": "zipformer2-ctc", "de": "nemo-ctc"}
    models = [
        LoadedModel.of(compiled_model(kind), decoder_for(compiled_model(kind)), kind, (language,))
        for language, kind in kinds.items()
    ]
    server, pcm = live_server(model=models), speech()
    for language, kind in kinds.items():
        assert listen(server, pcm, lambda: 1_000, language=language) == text_of(kind, pcm)


def test_texts_of_many_streams_do_not_depend_on_one_another(served: Any) -> None:
    server, pcm = served("zipformer2-transducer"), speech()[:90_000]
    lengths = (60_000, 90_000)
    alone = {length: listen(server, pcm[:length], lambda: 1_280) for length in lengths}
    with ExitStack() as stack:
        query = {"sample_rate": 16_000, "endpointing": "false"}
        clients = [stack.enter_context(server.listen(**query)) for _ in range(16)]
        for at in range(0, 90_000, 1_280):
            for number, client in enumerate(clients):
                part = pcm[at : min(at + 1_280, lengths[number % 2])]
                if len(part):
                    client.send(part)
        texts = [squeezed(transcript(finals_of(client.finish()))) for client in clients]
    assert texts == [alone[lengths[number % 2]] for number in range(16)]

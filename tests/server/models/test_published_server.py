"""Published models in the real server: messages of any size, Finalize, uploads, resuming, key terms, clients."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from websockets.exceptions import InvalidStatus

from server.models.loading import LoadedModel
from server.resume.tickets import new_key
from tests.support.clients.resume_client import ResumingClient
from tests.support.needs import need_package
from tests.support.networks.published import VARIANTS, at_rate, decoder_for, model_of, reference
from tests.support.servers.live_server import LiveServer, transcript

SAMPLES = Path(__file__).parents[3] / "model" / "samples"
# Bytes at random make no words that could be compared.
TEXTUAL = [name for name in VARIANTS if name not in {"nemo-480", "zipformer-chunk-32"}]
KINDS = [name for name, (kind, changes) in VARIANTS.items() if name == kind]
Start = Callable[..., LiveServer]


@pytest.fixture
def served(live_server: Start) -> Callable[..., LiveServer]:
    def start(variant: str, **options: Any) -> LiveServer:
        return live_server(model=model_of(variant), decoder=decoder_for(model_of(variant)), **options)

    return start


def speech(variant: str) -> np.ndarray:
    return at_rate(model_of(variant), soundfile.read(SAMPLES / "demo.flac", dtype="int16")[0])


def words_of(variant: str, pcm: np.ndarray) -> tuple[str, list[float]]:
    """Text without spaces, and the times at which its symbols begin."""
    tokens, times = reference(variant, pcm)
    return squeezed("".join(tokens)), times


def squeezed(text: str) -> str:
    return "".join(text.split())


def listen(
    server: LiveServer, pcm: np.ndarray, sizes: Callable[[], int], rate: int, **query: Any
) -> list[dict[str, Any]]:
    """Stream it in messages of any number of samples; return the finals."""
    with server.listen(sample_rate=rate, **query) as client:
        at = 0
        while at < len(pcm):
            size = sizes()
            client.send(pcm[at : at + size])
            at += size
        return [frame for frame in client.finish() if frame["type"] == "Results" and frame["is_final"]]


@pytest.mark.parametrize("variant", TEXTUAL)
def test_text_and_times_are_those_of_sherpa_onnx_in_messages_that_fit_nothing(served: Any, variant: str) -> None:
    pcm, rate = speech(variant), model_of(variant).config.sample_rate
    text, times = words_of(variant, pcm)
    dice = random.Random(4)
    server = served(variant)
    for sizes in (lambda: 777, lambda: dice.randrange(1, 4_000)):
        finals = listen(server, pcm, sizes, rate, endpointing="false")
        assert squeezed(transcript(finals)) == text
        starts = [word["start"] for final in finals for word in final["channel"]["alternatives"][0]["words"]]
        within = [at for at in times if at < len(pcm) / rate]
        assert all(min(abs(start - at) for at in times) < 0.002 for start in starts if start < max(within))


@pytest.mark.parametrize("variant", KINDS)
def test_finalize_begins_anew_at_the_next_sample(served: Any, variant: str) -> None:
    pcm, rate = speech(variant), model_of(variant).config.sample_rate
    border = len(pcm) // 2 + 123
    parts = pcm[:border], pcm[border:]
    with served(variant).listen(sample_rate=rate, endpointing="false") as client:
        client.send(parts[0])
        client.say("Finalize")
        client.send(parts[1])
        finals = [frame for frame in client.finish() if frame["type"] == "Results" and frame["is_final"]]
    assert squeezed(transcript(finals)) == "".join(words_of(variant, part)[0] for part in parts)


@pytest.mark.parametrize("variant", KINDS)
def test_a_stream_that_is_cut_and_resumed_elsewhere_has_the_finals_of_an_unbroken_one(variant: str) -> None:
    model = model_of(variant)
    pcm, rate = speech(variant), model.config.sample_rate
    key = new_key()
    with ExitStack() as stack:
        pair = [
            stack.enter_context(LiveServer(model=model, decoder=decoder_for(model), resume_keys=(key,)))
            for _ in range(2)
        ]
        whole = ResumingClient([pair[0]], pcm[:, None], rate).run(())
        moved = ResumingClient(pair, pcm[:, None], rate).run([1.7, 3.1, 3.4, 6.2])
    assert whole.tickets >= 5
    assert moved.results == whole.results
    assert any(final["channel"]["alternatives"][0]["words"] for final in whole.finals)


@pytest.mark.parametrize("variant", KINDS)
def test_an_upload_has_the_text_of_a_stream(served: Any, variant: str) -> None:
    pcm, rate = speech(variant), model_of(variant).config.sample_rate
    server = served(variant)
    finals = listen(server, pcm, lambda: 2_000, rate, endpointing="false")
    query = {"encoding": "linear16", "sample_rate": rate}
    answer = server.http.post("/v1/listen", params=query, content=pcm.tobytes()).json()
    assert answer["results"]["channels"][0]["alternatives"][0]["transcript"] == transcript(finals)


@pytest.mark.parametrize("variant", [*KINDS, "zipformer-chinese"])
def test_key_terms_are_refused_by_name_where_a_model_has_none(served: Any, variant: str) -> None:
    server = served(variant)
    with pytest.raises(InvalidStatus) as refused:
        server.listen(keyterm="okonkwo")
    assert refused.value.response.status_code == 400
    body = (refused.value.response.body or b"").decode()
    assert "keyterm" in body
    of_letters = "its symbols do not spell words" if variant == "zipformer-chinese" else "--decoder beam takes them"
    transducer = model_of(variant).transducer is not None
    assert ("the search of a transducer takes none" if transducer else of_letters) in body
    posted = server.http.post("/v1/listen", params={"keyterm": "okonkwo"}, content=b"")
    assert posted.status_code == 400


def test_texts_of_many_streams_do_not_depend_on_one_another(served: Any) -> None:
    """Streams of two lengths at once, in messages of 80 ms, and each alone."""
    server = served("zipformer2-ctc")
    pcm = speech("zipformer2-ctc")
    alone = {length: transcript(listen(server, pcm[:length], lambda: 1_280, 16_000)) for length in (60_000, 90_000)}
    with ExitStack() as stack:
        clients = [stack.enter_context(server.listen()) for _ in range(24)]
        for at in range(0, 90_000, 1_280):
            for number, client in enumerate(clients):
                part = pcm[at : min(at + 1_280, (60_000, 90_000)[number % 2])]
                if len(part):
                    client.send(part)
        texts = [
            transcript([frame for frame in client.finish() if frame["type"] == "Results" and frame["is_final"]])
            for client in clients
        ]
    assert texts == [alone[(60_000, 90_000)[number % 2]] for number in range(24)]


def test_deepgrams_sdk_streams_to_a_published_model(served: Any) -> None:
    need_package("deepgram")
    from deepgram import DeepgramClient
    from deepgram.core.events import EventType
    from deepgram.environment import DeepgramClientEnvironment

    server = served("t-one-ctc")
    pcm = speech("t-one-ctc")
    http, ws = f"http://{server.host}", f"ws://{server.host}"
    here = DeepgramClientEnvironment(base=http, production=ws, agent=ws, agent_rest=http)
    client = DeepgramClient(api_key="any", environment=here)
    finals: list[Any] = []
    options = {"encoding": "linear16", "sample_rate": 8_000, "endpointing": "false"}
    with client.listen.v1.connect(model="nova-3", **options) as stream:
        stream.on(EventType.MESSAGE, lambda each: finals.append(each) if getattr(each, "is_final", None) else None)
        reader = threading.Thread(target=stream.start_listening)
        reader.start()
        for at in range(0, len(pcm), 777):
            stream.send_media(pcm[at : at + 777].tobytes())
        stream.send_close_stream()
        reader.join(timeout=20)
    text = "".join(each.channel.alternatives[0].transcript for each in finals)
    assert squeezed(text) == words_of("t-one-ctc", pcm)[0]


def test_models_of_two_rates_are_chosen_by_language(live_server: Start) -> None:
    """The shipped rate and that of telephones in one replica; a language of neither is refused."""
    wide, narrow = model_of("zipformer2-ctc"), model_of("t-one-ctc")
    models = [
        LoadedModel.of(wide, decoder_for(wide), "wide", ("en",)),
        LoadedModel.of(narrow, decoder_for(narrow), "narrow", ("ru",)),
    ]
    server = live_server(model=models)
    for language, variant, rate in (("en-US", "zipformer2-ctc", 16_000), ("ru", "t-one-ctc", 8_000)):
        pcm = speech(variant)
        finals = listen(server, pcm, lambda: 1_000, rate, language=language, endpointing="false")
        assert squeezed(transcript(finals)) == words_of(variant, pcm)[0]
    with pytest.raises(InvalidStatus) as refused:
        server.listen(language="fr")
    assert refused.value.response.status_code == 400

"""Key terms of transducers in the real server: every protocol, changes in mid-stream, resumed streams, company."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import InvalidStatus

from model.acoustic import log_probs_of
from model.ctc.bias import NO_BIAS, Bias
from model.decoder import decoder_of
from server.audio.pcm import PCM
from server.recognition.keyterms.keyterms import MAX_WORDS, Keyterms, rare_terms
from server.resume.tickets import new_key
from tests.model.transducer.test_transducer_language import written
from tests.server.models.test_published_server import finals_of, listen, speech, squeezed
from tests.support.clients.resume_client import ResumingClient
from tests.support.networks.published import model_of
from tests.support.protocols.wire_stream import WireStream
from tests.support.servers.live_server import LiveServer, transcript

KINDS = ["zipformer2-transducer", "nemo-transducer"]
RATE = 16_000
Start = Callable[..., LiveServer]


@cache
def outputs(kind: str) -> np.ndarray:
    (found,) = log_probs_of(model_of(kind), [speech(RATE)])
    return found


def terms(kind: str) -> list[str]:
    """Words of one piece of the model, which has random weights: they change its text."""
    pieces = [name[1:] for name in model_of(kind).tokens.symbols if name.startswith("▁") and len(name) > 3]
    return pieces[:40]


def rare_words(kind: str) -> list[str]:
    """Words of a piece of `terms` and two inside words."""
    inside = [name for name in model_of(kind).tokens.symbols if name.isalpha() and len(name) < 7]
    words = [first + second + third for first in terms(kind) for second in inside[:2] for third in inside[2:3]]
    return [word for word in words if len(word) <= 24][:MAX_WORDS]


def words_of(kind: str, bias: Bias, decoder: Any = None) -> str:
    """Text of the demo recording without a server."""
    model, decoder = model_of(kind), decoder or decoder_of(model_of(kind).facts)
    state = decoder.start(model.config.delay_frames, bias)
    decoder.advance([state], outputs(kind)[np.newaxis])
    return squeezed("".join(word.text for word in decoder.take(state)))


@pytest.fixture
def served(live_server: Start) -> Callable[..., LiveServer]:
    return lambda kind, **options: live_server(
        model=model_of(kind), decoder=decoder_of(model_of(kind).facts), **options
    )


@pytest.mark.parametrize("kind", KINDS)
def test_key_terms_of_streams_and_uploads_are_those_without_a_server(served: Any, kind: str) -> None:
    pcm, names = speech(RATE), terms(kind)
    plain, biased = words_of(kind, NO_BIAS), words_of(kind, Bias.of([(name, 1.0) for name in names]))
    weighted = words_of(kind, Bias.of([(name, 3.0) for name in names]))
    assert len({plain, biased, weighted}) == 3
    server = served(kind)
    assert squeezed(transcript(listen(server, kind, pcm, lambda: 1_777, keyterm=names))) == biased
    asked = [f"{name}:3" for name in names]
    assert squeezed(transcript(listen(server, kind, pcm, lambda: 4_000, keywords=asked))) == weighted
    query = {"encoding": "linear16", "sample_rate": RATE, "keyterm": names}
    answer = server.http.post("/v1/listen", params=query, content=pcm.tobytes()).json()
    assert squeezed(answer["results"]["channels"][0]["alternatives"][0]["transcript"]) == biased
    files = {"file": ("a.wav", _wav(pcm), "audio/wav")}
    prompt = " ".join(rare_words(kind))
    rare = Keyterms.of((), (), rare_terms(prompt, decoder_of(model_of(kind).facts))).bias
    assert plain != words_of(kind, rare)
    prompted = server.http.post("/v1/audio/transcriptions", data={"prompt": prompt}, files=files)
    assert _plain(prompted.json()["text"]) == words_of(kind, rare)
    assert _flux(server, keyterm=names) != _flux(server)


def _flux(server: LiveServer, **query: Any) -> list[str]:
    """Turns of the recording by Flux; each one begins anew, so that its words may be others."""
    with WireStream(server, "flux", **query) as stream:
        stream.send(speech(RATE).tobytes())
        stream.send({"type": "CloseStream"})
        stream.rest()
    return [frame["transcript"] for frame in stream.frames if frame.get("event") == "EndOfTurn"]


def _plain(text: str) -> str:
    """Return a text without capitals, marks and spaces."""
    return "".join(filter(str.isalpha, text.lower()))


def _wav(pcm: PCM) -> bytes:
    import io

    import soundfile

    buffer = io.BytesIO()
    soundfile.write(buffer, pcm, RATE, format="WAV", subtype="PCM_16")
    return buffer.getvalue()


@pytest.mark.parametrize("kind", KINDS)
def test_terms_configured_in_mid_stream_count_from_the_next_step_on(served: Any, kind: str) -> None:
    pcm, names = speech(RATE), terms(kind)
    model, decoder = model_of(kind), decoder_of(model_of(kind).facts)
    step = model.config.step_samples
    border = 20 * step
    state = decoder.start(model.config.delay_frames)
    frames = outputs(kind)[np.newaxis]
    lead = model.config.lead_samples
    steps = (border + lead) // step
    decoder.advance([state], frames[:, : steps * model.config.frames_per_step])
    decoder.set_bias(state, Bias.of([(name, 1.0) for name in names]))
    decoder.advance([state], frames[:, steps * model.config.frames_per_step :])
    expected = squeezed("".join(word.text for word in decoder.take(state)))
    with served(kind).listen(sample_rate=RATE, endpointing="false") as client:
        client.send(pcm[:border])
        client.say("Configure", keyterms=names)
        assert client.until(lambda frame: frame["type"].startswith("Configure"))[-1]["type"] == "ConfigureSuccess"
        client.send(pcm[border:])
        text = squeezed(transcript(finals_of(client.finish())))
    assert text == expected != words_of(kind, NO_BIAS)


def test_context_adds_the_rare_words_of_a_text(served: Any) -> None:
    kind = "zipformer2-transducer"
    with served(kind).listen(sample_rate=RATE, endpointing="false") as client:
        client.say("Context", text=f"the {terms(kind)[0]} and Kowalczyk")
        answer = client.until(lambda frame: frame["type"].startswith("Context"))[-1]
    assert answer["type"] == "ContextSuccess"


def test_a_term_that_comes_after_its_word_is_found_by_rewind(served: Any) -> None:
    kind, pcm = "zipformer2-transducer", speech(RATE)
    plain = words_of(kind, NO_BIAS)
    new = [name for name in terms(kind) if name not in plain and name in words_of(kind, Bias.of([(name, 1.0)]))]
    assert new
    with served(kind).listen(sample_rate=RATE, endpointing="false", rewind=10) as client:
        client.send(pcm)
        client.say("Finalize")
        client.until(lambda frame: frame["type"] == "Results" and frame.get("from_finalize"))
        client.say("Rewind", seconds=10, keyterms=new[:1])
        corrected = client.until(lambda frame: frame.get("correction") or frame["type"].endswith("Failure"))[-1]
        client.finish()
    words = [word["word"] for word in corrected["channel"]["alternatives"][0]["words"]]
    assert new[0] in words


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_stream_with_key_terms_has_the_finals_of_an_unbroken_one(kind: str) -> None:
    options = {"model": model_of(kind), "decoder": decoder_of(model_of(kind).facts), "resume_keys": (new_key(),)}
    pcm = speech(RATE)[:, None]
    query = {"keyterm": terms(kind)}
    with ExitStack() as stack:
        pair = [stack.enter_context(LiveServer(**options)) for _ in range(2)]
        whole = ResumingClient([pair[0]], pcm, RATE, **query).run(())
        moved = ResumingClient(pair, pcm, RATE, **query).run([1.7, 3.1, 3.4, 6.2])
        plain = ResumingClient([pair[0]], pcm, RATE).run(())
    assert moved.results == whole.results != plain.results


@pytest.mark.parametrize("kind", KINDS)
def test_streams_with_other_terms_do_not_change_each_other(served: Any, kind: str) -> None:
    server, pcm, names = served(kind), speech(RATE)[:60_000], terms(kind)
    queries = [{}, *({"keyterm": names[first::3]} for first in range(3))]
    alone = [transcript(listen(server, kind, pcm, lambda: 1_280, **query)) for query in queries]
    assert len(set(alone)) > 1
    with ExitStack() as stack:
        clients = [stack.enter_context(server.listen(endpointing="false", **queries[at % 4])) for at in range(8)]
        for at in range(0, len(pcm), 1_280):
            for client in clients:
                client.send(pcm[at : at + 1_280])
        texts = [transcript(finals_of(client.finish())) for client in clients]
    assert texts == [alone[at % 4] for at in range(8)]


@pytest.mark.parametrize("with_lm", [False, True])
def test_beam_search_in_a_server_has_the_text_without_one_also_when_resumed(with_lm: bool, tmp_path: Path) -> None:
    kind, pcm = "zipformer2-transducer", speech(RATE)
    lm = written(tmp_path, [(name, -1.0) for name in terms(kind)]) if with_lm else None
    decoder = decoder_of(model_of(kind).facts, decoder="beam", lm=lm)
    expected = words_of(kind, Bias.of([(name, 1.0) for name in terms(kind)]), decoder)
    assert expected != words_of(kind, NO_BIAS, decoder)
    options = {"model": model_of(kind), "decoder": decoder, "resume_keys": (new_key(),)}
    query = {"keyterm": terms(kind), "endpointing": "false"}
    with ExitStack() as stack:
        pair = [stack.enter_context(LiveServer(**options)) for _ in range(2)]
        moved = ResumingClient(pair, pcm[:, None], RATE, **query).run([2.4, 4.1])
    assert squeezed(transcript(moved.finals)) == expected


def test_a_term_without_pieces_and_a_grammar_are_refused_by_name(served: Any) -> None:
    server = served("zipformer2-transducer")
    for query, said in (
        ({"keyterm": "ox"}, "key term 'ox' cannot be recognized by this model"),
        ({"grammar": "digits"}, "grammar: the model"),
    ):
        with pytest.raises(InvalidStatus) as refused:
            server.listen(**query)
        assert refused.value.response.status_code == 400
        body = (refused.value.response.body or b"").decode()
        assert said in body, body

"""A model that lets a stream choose its language, in the real server: Deepgram, Flux, OpenAI and vosk.

The expected text is that of the model without a server, whose symbols are sherpa-onnx's:
`tests/model/published/test_languages.py`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import soundfile
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from model.ctc.words import Word, joined, languages_of
from server.models.selection import language_name
from tests.model.published.test_languages import VARIANT, pcm, run
from tests.support.networks.probes.fastconformer import LANGUAGES
from tests.support.networks.published import decoder_for, model_of
from tests.support.servers.live_server import LiveServer

RAW = {"encoding": "linear16", "sample_rate": 16_000}
STEP_S = 0.32
Frame = dict[str, Any]


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    model = model_of(VARIANT)
    with LiveServer(model=model, decoder=decoder_for(model)) as running:
        yield running


@cache
def words_of(*numbers: int) -> tuple[Word, ...]:
    """Words of the recording without a server; `numbers`: as those of a row of `run`."""
    model, (outputs,) = model_of(VARIANT), run([list(numbers)])
    decoder = decoder_for(model)
    state = decoder.start(model.config.delay_frames)
    decoder.advance([state], outputs[np.newaxis])
    return decoder.take(state)


def text_of(*numbers: int) -> str:
    return squeezed(joined(word.text for word in words_of(*numbers)))


def squeezed(text: str) -> str:
    return "".join(text.split())


def finals(server: LiveServer, **query: Any) -> list[Frame]:
    with server.listen(sample_rate=16_000, endpointing="false", **query) as client:
        client.send(pcm())
        return [frame for frame in client.finish() if frame["type"] == "Results" and frame["is_final"]]


def said(frames: list[Frame]) -> str:
    return squeezed(" ".join(frame["channel"]["alternatives"][0]["transcript"] for frame in frames))


def refusal(server: LiveServer, **query: Any) -> str:
    with pytest.raises(InvalidStatus) as refused:
        finals(server, **query)
    assert refused.value.response.status_code == 400
    return str(refused.value.response.body.decode())


@pytest.mark.parametrize("asked", ["de-DE", "ja", "PT_br"])
def test_a_stream_and_an_upload_have_the_words_of_their_language(server: LiveServer, asked: str) -> None:
    tag = {"ja": "ja-JP", "PT_br": "pt-BR"}.get(asked, asked)
    frames = finals(server, language=asked)
    assert said(frames) == text_of(1 + LANGUAGES[tag]) != text_of(0)
    answer = server.http.post("/v1/listen", params={**RAW, "language": asked}, content=pcm().tobytes()).json()
    assert squeezed(answer["results"]["channels"][0]["alternatives"][0]["transcript"]) == said(frames)


@pytest.mark.parametrize("query", [{}, {"language": "auto"}, {"language": "multi"}])
def test_without_a_language_the_model_finds_it(server: LiveServer, query: Frame) -> None:
    assert said(finals(server, **query)) == text_of(0)


def test_tags_in_the_text_become_the_languages_of_the_words_before_them(server: LiveServer) -> None:
    frames, words = finals(server, language="en-GB"), words_of(2)
    tagged = [word.language for word in words if word.language]
    assert len(tagged) > 20
    assert said(frames) == text_of(2)
    assert "<" not in said(frames)
    shown = [word for frame in frames for word in frame["channel"]["alternatives"][0]["words"]]
    assert [word.get("language", "") for word in shown] == [word.language for word in words]
    assert frames[0]["channel"]["detected_language"] == tagged[-1]
    assert set(frames[0]["channel"]["alternatives"][0]["languages"]) == set(tagged)


def test_an_unknown_language_is_refused_with_the_list(server: LiveServer) -> None:
    said_no = refusal(server, language="fr")
    assert "'fr'" in said_no
    assert all(tag in said_no for tag in LANGUAGES if tag != "auto")
    languages = server.http.get("/v1/models").json()["data"][0]["languages"]
    assert languages == [tag for tag in LANGUAGES if tag != "auto"]


def test_numbers_are_masked_in_a_stream_of_one_language_that_has_number_words(server: LiveServer) -> None:
    assert said(finals(server, language="en-US", redact="pci")) == text_of(1)
    assert "redact: numbers are masked in English and Mandarin only" in refusal(server, redact="pci")
    assert "redact" in refusal(server, language="de", redact="pci")


def turns(server: LiveServer, *messages: Any, **query: Any) -> list[Frame]:
    """Send audio and messages at `/v2/listen`; return the frames."""
    given = "&".join(f"{name}={value}" for name, value in {**RAW, **query}.items())
    frames: list[Frame] = []
    with connect(f"ws://{server.host}/v2/listen?{given}", proxy=None) as socket:
        for message in messages:
            socket.send(message.tobytes() if isinstance(message, np.ndarray) else json.dumps(message))
        socket.send(json.dumps({"type": "CloseStream"}))
        frames += [json.loads(frame) for frame in socket]
    return frames


def turn_text(frames: list[Frame]) -> str:
    return squeezed(" ".join(frame["transcript"] for frame in frames if frame.get("event") == "EndOfTurn"))


def test_flux_takes_a_hint_and_returns_the_languages_of_a_turns_words(server: LiveServer) -> None:
    frames = turns(server, pcm(), model="flux-general-multi", language_hint="de", eot_timeout_ms=60_000)
    assert turn_text(frames) == text_of(1 + LANGUAGES["de-DE"])
    assert turn_text(turns(server, pcm(), model="flux-general-multi", eot_timeout_ms=60_000)) == text_of(0)
    tagged = turns(server, pcm(), model="flux-general-multi", language_hint="en-GB", eot_timeout_ms=60_000)
    last = [frame for frame in tagged if frame.get("event") == "EndOfTurn"][-1]
    assert set(last["languages"]) == {word.language for word in words_of(2)} - {""}


def test_configure_changes_the_language_from_the_next_step_on(server: LiveServer) -> None:
    model = model_of(VARIANT)
    steps = 6
    first = steps * model.config.step_samples - model.config.lead_samples
    change = {"type": "Configure", "language_hints": ["ja"]}
    wrong = {"type": "Configure", "language_hints": ["fr"]}
    frames = turns(
        server,
        *(pcm()[:first], wrong, change, pcm()[first:]),
        model="flux-general-multi",
        language_hint="en-US",
        eot_timeout_ms=60_000,
    )
    (failure,) = (frame for frame in frames if frame["type"] == "ConfigureFailure")
    assert failure["description"].startswith("language_hints: 'fr' is not one of en-US, en-GB")
    (success,) = (frame for frame in frames if frame["type"] == "ConfigureSuccess")
    assert success["language_hints"] == ["ja"]
    changed = text_of(*[1] * steps, 1 + LANGUAGES["ja-JP"])
    assert turn_text(frames) == changed
    assert changed not in (text_of(1), text_of(1 + LANGUAGES["ja-JP"]))


def test_openai_takes_a_tag_or_a_name_and_returns_the_detected_language(server: LiveServer) -> None:
    wav = io.BytesIO()
    soundfile.write(wav, pcm(), 16_000, format="WAV")

    def answer(**data: str) -> Any:
        files = {"file": ("a.wav", wav.getvalue())}
        return server.http.post("/v1/audio/transcriptions", files=files, data={"model": "whisper-1", **data})

    for language in ("ja", "japanese"):
        assert squeezed(answer(language=language).json()["text"]) == text_of(1 + LANGUAGES["ja-JP"])
    assert squeezed(answer().json()["text"]) == text_of(0)
    verbose = answer(response_format="verbose_json", language="en-GB").json()
    assert verbose["language"] == language_name(languages_of(words_of(2))[0])
    assert answer(language="fr").status_code == 400

"""English and Mandarin in one server: each protocol chooses by language, and neither changes the other's text."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import pytest
from playwright.sync_api import Browser, expect
from websockets.sync.client import connect

from loadtest.generator.settings import LoadSettings
from loadtest.measurement.run import measure_levels
from model.ctc.words import continued, joined
from model.recordings import Utterance, read_manifest, read_pcm
from server.models.loading import LoadedModel, load_served
from server.protocols.openai.messages import COMPLETED, DELTA
from server.settings import Settings
from server.tools.evaluate import evaluate
from server.tools.local import open_local
from tests.support.audio.speech import ROOT, SAMPLES, samples
from tests.support.needs import need_package, need_programs
from tests.support.page.browser import PROGRAM, OpenPage, chromium, microphone_file
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer
from tutti_asr_client.files.transcriber import RemoteTranscriber

Start = Callable[..., LiveServer]
MANDARIN = read_manifest(ROOT / "model" / "samples" / "mandarin.jsonl")
WEATHER = next(utterance for utterance in MANDARIN if utterance.audio.stem == "mandarin_weather")


@pytest.fixture(scope="module")
def models() -> tuple[LoadedModel, ...]:
    return load_served(Settings(model=["en=tutti-small", "zh=tutti-mandarin"]))[0]


@pytest.fixture
def server(live_server: Start, models: tuple[LoadedModel, ...]) -> LiveServer:
    return live_server(model=models, max_streams=64)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    need_programs(PROGRAM)
    with chromium(microphone_file(WEATHER.audio, tmp_path_factory.mktemp("microphone"))) as started:
        yield started


def alone(utterances: list[Utterance], model: str) -> tuple[str, ...]:
    settings = Settings(model=[model], max_batch=8)
    return asyncio.run(evaluate(utterances, lambda: open_local(settings), 8)).texts


def test_streams_of_both_at_once_have_the_texts_that_each_model_gives_alone(server: LiveServer) -> None:
    async def both() -> tuple[tuple[str, ...], ...]:
        def over(utterances: list[Utterance], **query: str):
            remote = RemoteTranscriber(f"ws://{server.host}", **query)
            return evaluate(utterances, lambda: nullcontext(remote), 8)

        found = await asyncio.gather(over(samples()), over(MANDARIN * 3, language="zh"))
        return tuple(each.texts for each in found)

    english, mandarin = asyncio.run(both())
    assert english == alone(samples(), "tutti-small")
    assert mandarin == alone(MANDARIN, "tutti-mandarin") * 3


def test_a_load_of_both_has_the_texts_of_each_alone(server: LiveServer) -> None:
    """Streams of several segments, so that the text of one is joined from finals."""
    asked = LoadSettings(f"ws://{server.host}", (8,), 9.0, stream_s=4.0, manifest=SAMPLES.with_name("both.jsonl"))
    found = asyncio.run(measure_levels(asked, progress=lambda _: None)).document.levels[0]
    assert found.compared >= 8
    assert (found.mismatched, found.failed) == (0, 0)


@pytest.mark.parametrize("tag", ["zh", "zh-CN", "cmn", "cmn-Hans-CN"])
def test_uploads_choose_by_any_tag_of_mandarin(server: LiveServer, tag: str) -> None:
    body = WEATHER.audio.read_bytes()
    answer = server.http.post("/v1/listen", params={"language": tag}, content=body).json()
    assert answer["results"]["channels"][0]["alternatives"][0]["transcript"] == WEATHER.text
    files = {"file": ("a.flac", body), "language": (None, tag), "model": (None, "whisper-1")}
    spoken = server.http.post("/v1/audio/transcriptions", files=files | {"response_format": (None, "verbose_json")})
    assert (spoken.json()["text"], spoken.json()["language"]) == (f"{WEATHER.text}。", "chinese")


def test_deepgrams_sdk_chooses_by_language(server: LiveServer) -> None:
    need_package("deepgram")
    from deepgram import DeepgramClient
    from deepgram.core.events import EventType
    from deepgram.environment import DeepgramClientEnvironment

    http, ws = f"http://{server.host}", f"ws://{server.host}"
    here = DeepgramClientEnvironment(base=http, production=ws, agent=ws, agent_rest=http)
    finals: list[str] = []

    def received(message: Any) -> None:
        if message.type == "Results" and message.is_final:
            finals.append(message.channel.alternatives[0].transcript)

    options: Mapping[str, Any] = {"encoding": "linear16", "sample_rate": 16_000, "language": "zh-CN"}
    with DeepgramClient(api_key="any", environment=here).listen.v1.connect(model="nova-3", **options) as stream:
        stream.on(EventType.MESSAGE, received)
        reader = threading.Thread(target=stream.start_listening)
        reader.start()
        stream.send_media(read_pcm(WEATHER.audio).tobytes())
        stream.send_close_stream()
        reader.join(timeout=WAIT_S)
    assert "".join(finals) == WEATHER.text


def test_vosks_protocol_chooses_by_language(server: LiveServer) -> None:
    url = f"ws://{server.host}/vosk?language=zh"
    with connect(url, compression=None, open_timeout=WAIT_S, close_timeout=WAIT_S) as socket:
        socket.send('{"config":{"sample_rate":16000}}')
        socket.send(read_pcm(WEATHER.audio).tobytes())
        socket.send('{"eof":1}')
        answers = [json.loads(socket.recv(timeout=WAIT_S)) for _ in range(2)]
    texts = [answer.get("text", "") for answer in answers]
    assert "".join(texts) == WEATHER.text
    words = [word["word"] for answer in answers for word in answer.get("result", ())]
    assert words == list(WEATHER.text)


@pytest.mark.parametrize(
    ("before", "text", "delta"),
    [
        ("", "今天", "今天"),
        ("今", "天", "天"),
        ("。", "天", "天"),
        ("a", "b", " b"),
        ("今", "b", " b"),
        ("今", "", ""),
    ],
)
def test_text_that_grows_has_spaces_where_the_whole_would(before: str, text: str, delta: str) -> None:
    assert continued(before, text) == delta
    assert before + delta == (joined([before, text]) if before and text else before + text)


def test_openais_streamed_uploads_grow_without_spaces(server: LiveServer) -> None:
    body = WEATHER.audio.read_bytes()
    files = {"file": ("a.flac", body), "language": (None, "zh"), "model": (None, "any"), "stream": (None, "true")}
    lines = server.http.post("/v1/audio/transcriptions", files=files).text.splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    assert "".join(event["delta"] for event in events if "delta" in event) == f"{WEATHER.text}。" == events[-1]["text"]


def test_openais_realtime_chooses_by_language_and_says_it(server: LiveServer) -> None:
    url = f"ws://{server.host}/v1/realtime?intent=transcription&language=zh&model=gpt-4o-transcribe"
    turns = {"format": {"type": "audio/pcm", "rate": 16_000}, "turn_detection": None}
    with connect(url, compression=None, open_timeout=WAIT_S, close_timeout=WAIT_S) as socket:

        def say(type_: str, **fields: object) -> None:
            socket.send(json.dumps({"type": type_, **fields}))

        def until(type_: str) -> list[dict[str, Any]]:
            events = [json.loads(socket.recv(timeout=WAIT_S))]
            while events[-1]["type"] != type_:
                events.append(json.loads(socket.recv(timeout=WAIT_S)))
            return events

        (created,) = until("session.created")
        assert created["session"]["audio"]["input"]["transcription"]["language"] == "zh"
        say("session.update", session={"type": "transcription", "audio": {"input": turns}})
        say("input_audio_buffer.append", audio=base64.b64encode(read_pcm(WEATHER.audio).tobytes()).decode())
        say("input_audio_buffer.commit")
        events = until(COMPLETED)
    assert events[-1]["transcript"] == WEATHER.text
    deltas = [event["delta"] for event in events if event["type"] == DELTA]
    assert "".join(deltas) == WEATHER.text, "characters grow without spaces"


def test_other_languages_are_refused_with_what_there_is(server: LiveServer) -> None:
    refused = server.http.post("/v1/listen", params={"language": "de"}, content=b"x")
    assert refused.status_code == 400
    assert "there is en (en), zh (zh)" in refused.text


def test_the_page_offers_both_languages_and_shows_characters(server: LiveServer, browser: Browser) -> None:
    page = OpenPage(browser, server).plain().fast()
    expect(page.page.locator("#language option")).to_have_count(2)
    assert page.page.locator("#language option").all_inner_texts() == ["English", "中文"]
    page.page.select_option("#language", "zh")
    page.page.set_input_files("#file", WEATHER.audio)
    page.wait_idle()
    assert page.said() == WEATHER.text
    page.page.select_option("#language", "en")
    page.page.set_input_files("#file", next(one.audio for one in samples() if one.audio.stem == "order"))
    page.wait_idle()
    assert page.said().endswith("where is my order")
    assert page.problems == []


def test_a_page_of_one_language_offers_none(live_server: Start, browser: Browser) -> None:
    page = OpenPage(browser, live_server())
    expect(page.page.locator("#language option")).to_have_count(1)
    assert not page.page.locator("#language").is_visible()

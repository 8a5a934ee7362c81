"""English and Mandarin in one server: each is chosen by language, and neither changes the other's text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest
from playwright.sync_api import Browser, expect

from loadtest.generator.settings import LoadSettings
from loadtest.measurement.run import measure_levels
from model.ctc.words import continued, joined
from model.recordings import Utterance, read_manifest
from server.models.loading import LoadedModel, load_served
from server.settings import Settings
from server.tools.evaluate import evaluate
from server.tools.local import open_local
from tests.support.audio.speech import ROOT, SAMPLES, samples
from tests.support.needs import need_programs
from tests.support.page.browser import PROGRAM, OpenPage, chromium, microphone_file
from tests.support.servers.live_server import LiveServer
from tutti_asr_client.files.transcriber import RemoteTranscriber

Start = Callable[..., LiveServer]
MANDARIN = read_manifest(ROOT / "model" / "samples" / "mandarin.jsonl")
WEATHER = next(utterance for utterance in MANDARIN if utterance.audio.stem == "mandarin_weather")


@pytest.fixture(scope="module")
def models() -> tuple[LoadedModel, ...]:
    return load_served(Settings(model=["en=tutti-gru", "zh=tutti-mandarin"]))[0]


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
    assert english == alone(samples(), "tutti-gru")
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


@pytest.mark.parametrize(
    ("before", "text", "delta"),
    [("", "今天", "今天"), ("今", "天", "天"), ("。", "天", "天"), ("a", "b", " b"), ("今", "b", " b"), ("今", "", "")],
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

"""Text shown by the page in a real Chromium, with the real app and the shipped model."""

import re
import time
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import soundfile
import srt

from model.decoder import decoder_of
from tests.support.audio.speech import samples
from tests.support.page.browser import OpenPage, cut_connections

pytest_plugins = ["tests.support.page.browser_fixtures"]

SPOKEN = {utterance.audio.stem: utterance for utterance in samples()}

# Records the words of the open line as it grows: "where is" solid and "my" faded gives "where is|my".
WATCH = """addEventListener("DOMContentLoaded", () => {
  const open = document.getElementById("open"), text = (kind) =>
    [...open.querySelectorAll(kind)].map((word) => word.textContent).join(" ");
  window.looks = [];
  new MutationObserver(() => window.looks.push(text(".stable") + "|" + text(".unstable")))
    .observe(open, { childList: true });
});"""


def test_speech_at_the_microphone_is_shown(live_server, served, browser):
    page = OpenPage(browser, live_server(**served), before=WATCH).plain()
    page.press("Microphone")
    page.page.wait_for_selector("#log .said")
    page.press("Stop")
    page.wait_idle()
    assert page.said() == SPOKEN["porch_fan"].text
    faded = {word for look in page.page.evaluate("looks") for word in look.partition("|")[2].split()}
    assert faded & set(page.said().split()), "words that may change are faded"
    word = page.page.locator("#log .word").first
    assert re.fullmatch(r"confidence \d+ %", word.get_attribute("title"))
    assert 0 <= float(word.evaluate("word => word.style.getPropertyValue('--doubt')")) < 1
    for name in ("result", "final"):
        assert 0 <= int(page.page.locator(f"#{name}-latency output").inner_text()) < 2_000
    assert int(page.page.locator("#level").get_attribute("aria-valuenow")) <= 0
    assert page.problems == []
    assert page.hosts == {page.host}


def test_stable_words_are_shown_solid_before_the_others(live_server, served, browser):
    """The greedy decoder's finished words are stable: they become solid one by one, and the final keeps them."""
    greedy = decoder_of(served["model"].facts, decoder="greedy")
    page = OpenPage(browser, live_server(model=served["model"], decoder=greedy), before=WATCH).plain()
    page.page.set_input_files("#file", SPOKEN["porch_fan"].audio)
    page.wait_idle()
    looks = [look.partition("|") for look in page.page.evaluate("looks")]
    settled = [solid.split() for solid, _, _ in looks if solid]
    assert len(settled) >= 3
    assert all(page.said().split()[: len(words)] == words for words in settled)
    assert any(solid and faded for solid, _, faded in looks)
    assert page.page.locator("#open .word").count() == 0, "the final replaces the open line"


NO_DECODING = "for (const one of [AudioContext, OfflineAudioContext]) one.prototype.decodeAudioData = undefined;"


def test_recordings_are_transcribed_faster_than_they_play(live_server, served, browser, tmp_path):
    """The file itself is sent, also one that the browser cannot decode, with the settings of the page."""
    unknown = tmp_path / "digits.aiff"
    soundfile.write(unknown, *soundfile.read(SPOKEN["telephone_8khz"].audio, dtype="int16"))
    page = OpenPage(browser, live_server(**served), before=NO_DECODING).plain().fast()
    page.page.get_by_label("Key terms").fill("porch fan, Patrick")
    page.page.wait_for_selector("#language option", state="attached")
    page.press("Sample")
    page.wait_idle()
    page.page.set_input_files("#file", unknown)
    page.wait_idle()
    assert page.said() == f"{SPOKEN['demo'].text} {SPOKEN['telephone_8khz'].text}"
    assert page.page.locator("#log h3").all_inner_texts() == ["digits.aiff"]
    assert "× real time" in page.page.locator("#audio-seconds").inner_text()
    (sent,) = {urlsplit(address).query for address in page.addresses if "/v1/listen" in address}
    assert sent == "utterances=true&smart_format=false&keyterm=porch+fan&keyterm=Patrick&language=en"
    page.press("Clear")
    assert (page.said(), page.page.locator("#hint").is_visible()) == ("", True)
    assert page.problems == []


def test_an_upload_shows_its_progress_and_can_be_canceled(live_server, served, browser, tmp_path):
    noise = np.random.default_rng(0).integers(-9, 9, 600 * 16_000, np.int16)
    soundfile.write(tmp_path / "long.wav", noise, 16_000)
    server = live_server(**served)
    page = OpenPage(browser, server).fast()
    page.page.evaluate(
        "looks = []; const shown = document.getElementById('status');"
        "new MutationObserver(() => looks.push(shown.textContent)).observe(shown, { childList: true })"
    )
    page.page.set_input_files("#file", tmp_path / "long.wav")
    page.page.get_by_text("Transcribing…").wait_for()
    page.press("Stop")
    page.wait_idle()
    looks = page.page.evaluate("looks")
    assert any(re.fullmatch(r"Sending… \d+ %", look) for look in looks)
    assert not page.page.get_by_role("alert").is_visible()
    server.wait_idle()
    page.press("Sample")
    page.page.wait_for_selector("#log .said")


def test_the_transcript_is_downloaded_as_text_and_subtitles(live_server, served, browser):
    page = OpenPage(browser, live_server(**served)).fast()
    page.page.set_input_files("#file", SPOKEN["order"].audio)
    page.wait_idle()
    files = {}
    for form in ("txt", "srt", "vtt"):
        with page.page.expect_download() as started:
            page.press(f".{form}")
        files[form] = Path(started.value.path()).read_text()
    assert files["txt"] == "Where is my order?\n"
    (cue,) = srt.parse(files["srt"])
    assert cue.content == "Where is my order?"
    shown = """vtt => new Promise(resolve => {
      const video = document.createElement("video"), track = document.createElement("track");
      track.src = URL.createObjectURL(new Blob([vtt]));
      track.onload = () => resolve([...track.track.cues].map(({ startTime, text }) => [startTime, text]));
      video.append(track);
      track.track.mode = "showing";
    })"""
    assert page.page.evaluate(shown, files["vtt"]) == [[cue.start.total_seconds(), cue.content]]
    assert page.problems == []


def test_formatted_text_is_the_default_and_can_be_turned_off(live_server, served, browser):
    page = OpenPage(browser, live_server(**served)).fast()
    page.page.set_input_files("#file", SPOKEN["order"].audio)
    page.wait_idle()
    assert page.said() == "Where is my order?"


def test_a_recording_is_transcribed_as_it_plays_and_a_cut_connection_loses_no_word(live_server, served, browser):
    """The audio since the last final is sent again, followed by the audio recorded meanwhile."""
    server = live_server(**served)
    spoken, page = SPOKEN["porch_fan"], OpenPage(browser, server).plain()
    began_s = time.monotonic()
    page.page.set_input_files("#file", spoken.audio)
    page.page.locator("#open").filter(has_text="turn on").wait_for()
    cut_connections(server)
    page.wait_idle()
    assert time.monotonic() - began_s >= spoken.duration_s, "at the speed of speech"
    assert page.said() == spoken.text
    assert len([address for address in page.addresses if address.startswith("ws:")]) == 2
    assert not page.page.locator("#problem").is_visible(), "a repaired problem is not shown"
    assert page.problems == []
    assert page.hosts == {page.host}


RECORD = """async (host) => {
  const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  const recorder = new MediaRecorder(stream, { mimeType: "audio/webm;codecs=opus" });
  const socket = new WebSocket(`ws://${host}/v2/listen?model=flux-general-en`);
  const events = [];
  recorder.ondataavailable = async ({ data }) => socket.send(await data.arrayBuffer());
  socket.onopen = () => recorder.start(100);
  const ended = new Promise((done) => {
    socket.onclose = done;
    socket.onmessage = ({ data }) => {
      events.push(JSON.parse(data));
      if (events.at(-1).event == "EndOfTurn") recorder.stop(), socket.send('{"type":"CloseStream"}');
    };
  });
  await ended;
  return events;
}"""


def test_a_media_recorder_has_turns(live_server, served, browser):
    page = OpenPage(browser, live_server(**served))
    received = page.page.evaluate(RECORD, page.host)
    (end,) = [message for message in received if message.get("event") == "EndOfTurn"]
    words, said = re.sub("[^a-z ]", "", end["transcript"].lower()).split(), SPOKEN["porch_fan"].text.split()
    assert words[:-1] == said[:-1]  # what is recorded in real time differs a little from run to run
    assert len(words) == len(said)
    assert received[0]["type"] == "Connected"
    assert page.problems == []


def test_the_switch_turns_shows_when_turns_start_and_end(live_server, served, browser):
    page = OpenPage(browser, live_server(**served))
    page.page.get_by_role("checkbox", name="Turns").check()
    page.page.get_by_label("Key terms").fill("porch fan")
    page.page.set_input_files("#file", SPOKEN["porch_fan"].audio)
    page.page.locator("#turn-events [data-event=StartOfTurn]").first.wait_for()
    page.page.locator("#open .unstable").first.wait_for()
    page.wait_idle()
    events = list(page.page.locator("#turn-events li").evaluate_all("rows => rows.map(r => r.dataset.event)"))
    assert events[-1] == "StartOfTurn"
    assert events[0] == "EndOfTurn"
    assert "EagerEndOfTurn" in events
    end = page.page.locator("#turn-events [data-event=EndOfTurn]").first.inner_text()
    assert re.fullmatch(r"EndOfTurn · \d+\.\d\d s · [01]\.\d\d", end)
    words = re.sub("[^a-z ]", "", page.said().lower()).split()
    assert words == SPOKEN["porch_fan"].text.split()
    assert page.page.locator("#open .word").count() == 0, "the end of the turn replaces the open line"
    (address,) = [address for address in page.addresses if address.startswith("ws:")]
    query = "encoding=linear16&sample_rate=16000&eager_eot_threshold=0.5&model=flux-general-en&numerals=true"
    assert address == f"ws://{page.host}/v2/listen?{query}&keyterm=porch+fan"
    assert page.problems == []


def test_a_refused_stream_of_turns_asks_for_the_key(live_server, served, browser):
    page = OpenPage(browser, live_server(api_keys=("right",), **served))
    page.page.get_by_role("checkbox", name="Turns").check()
    page.press("Microphone")
    page.page.get_by_text("This server requires an API key.").wait_for()
    page.wait_idle()

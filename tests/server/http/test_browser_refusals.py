"""Error messages of the page in a real Chromium; keyboard use and narrow screens."""

import pytest

from tests.support.audio.speech import samples
from tests.support.page.browser import OpenPage, cut_connections

pytest_plugins = ["tests.support.page.browser_fixtures"]

SAMPLE = next(utterance.text for utterance in samples() if utterance.audio.stem == "demo")

NO_MICROPHONE = """navigator.mediaDevices.getUserMedia = () => Promise.reject(new DOMException("", "%s"));"""


def test_the_page_asks_for_a_key_keeps_it_in_the_tab_and_hides_it(live_server, served, browser):
    page = OpenPage(browser, live_server(**served, api_keys=("open-sesame",))).plain().fast()
    key, problem = page.page.get_by_label("API key"), page.page.get_by_role("alert")
    for given, complaint in (
        (None, "requires an API key"),
        ("wrong", "is not valid on this server"),
        ("not a token", "is not valid on this server"),
    ):
        if given:
            key.fill(given)
        page.press("Sample")
        page.wait_idle()
        assert complaint in problem.inner_text()
        assert key.evaluate("field => field === document.activeElement")
    key.fill("open-sesame")
    page.press("Sample")
    page.wait_idle()
    assert page.said() == SAMPLE
    assert not problem.is_visible()
    page.page.reload()
    assert key.input_value() == "open-sesame"
    assert page.page.evaluate("localStorage.length + document.cookie.length") == 0
    assert not any("sesame" in address for address in page.addresses)


def test_a_full_server_is_reported_and_retried(live_server, served, browser):
    server = live_server(**served, max_streams=1)
    page = OpenPage(browser, server).plain()
    with server.listen() as other:
        page.press("Sample")
        page.page.get_by_text("The server is full").wait_for()
        other.finish()
    page.wait_idle()
    assert page.said() == SAMPLE


@pytest.mark.parametrize(("error", "words"), [("NotFoundError", "No microphone"), ("NotAllowedError", "Allow it")])
def test_a_microphone_error_is_explained(live_server, browser, error, words):
    page = OpenPage(browser, live_server(), before=NO_MICROPHONE % error)
    page.press("Microphone")
    assert words in page.page.get_by_role("alert").inner_text()
    page.wait_idle()
    assert page.page.get_by_role("button", name="Microphone").is_enabled()
    assert page.problems == []


def test_a_file_that_is_not_audio_is_named(live_server, browser, tmp_path):
    (tmp_path / "letter.wav").write_bytes(b"Dear Sir")
    page = OpenPage(browser, live_server())
    page.page.set_input_files("#file", tmp_path / "letter.wav")
    page.page.get_by_text("cannot read letter.wav").wait_for()
    page.wait_idle()
    page.fast().page.set_input_files("#file", tmp_path / "letter.wav")
    page.page.get_by_text("not a supported recording").wait_for()
    page.wait_idle()


def test_a_file_over_the_servers_limit_is_refused_with_its_sentence(live_server, browser, tmp_path):
    (tmp_path / "long.wav").write_bytes(bytes(9_000_000))
    page = OpenPage(browser, live_server(max_upload_bytes=2**20)).fast()
    page.page.set_input_files("#file", tmp_path / "long.wav")
    page.page.get_by_text("larger than the limit").wait_for()
    page.wait_idle()


def test_the_page_fits_narrow_screens_and_works_by_keyboard(live_server, browser):
    page = OpenPage(browser, live_server(), reduced_motion="reduce").page
    page.get_by_text("Settings").evaluate("title => title.closest('details').open = true")
    unnamed = """() => [...document.querySelectorAll("button, input, summary")]
        .filter((one) => !(one.innerText?.trim() || one.labels?.[0]?.innerText.trim()))"""
    assert page.evaluate(f"({unnamed})().length") == 0
    for width in (320, 390, 768, 1280):
        page.set_viewport_size({"width": width, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    reached = set()
    for _ in range(15):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id"))
    assert {"scroll", "main", "file", "sample", "key", "terms", "format", "play"} <= reached


def test_a_stream_that_cannot_be_finished_can_be_left(live_server, browser):
    server = live_server()
    page = OpenPage(browser, server)
    page.press("Microphone")
    page.page.get_by_text("Listening").wait_for()
    server.replica.sessions.draining = True  # a client that reconnects is refused
    cut_connections(server)
    page.page.get_by_text("full or restarting").wait_for()
    page.press("Stop")
    page.page.get_by_text("Finishing").wait_for()
    page.press("Stop")
    page.wait_idle()
    assert page.page.get_by_role("button", name="Microphone").is_enabled()

"""Screenshots of the page for the documents.

`python -m tests.support.page.page_screenshots` writes them to docs/images.
The shipped sample plays in a real Chromium against the real app, and the last sentence is being spoken. One more has
recordings in Mandarin.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from server.models.loading import load_served
from server.settings import Settings
from tests.support.audio.speech import ROOT, SAMPLES
from tests.support.page.browser import OpenPage, chromium, microphone_file
from tests.support.servers.live_server import LiveServer

IMAGES = ROOT / "docs" / "images"
LOOKS: dict[str, dict[str, Any]] = {
    "desktop": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "light"},
    "phone": {
        "viewport": {"width": 390, "height": 844},
        "device_scale_factor": 2,
        "is_mobile": True,
        "has_touch": True,
        "color_scheme": "dark",
    },
}


def main() -> None:
    """Write one picture for each appearance."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    models = load_served(Settings(model=["en=tutti-gru", "zh=tutti-mandarin"]))[0]
    with tempfile.TemporaryDirectory() as folder, LiveServer(model=models) as server:
        with chromium(microphone_file(SAMPLES.parent / "order.flac", Path(folder))) as browser:
            for name, look in LOOKS.items():
                page = OpenPage(browser, server, **look)
                page.press("Sample")
                page.page.locator("#open").filter(has_text="call me back").wait_for()
                page.page.screenshot(path=IMAGES / f"page-{name}.png")
                page.page.close()
            page = OpenPage(browser, server, **LOOKS["desktop"]).plain().fast()
            page.page.select_option("#language", "zh")
            for name in ("weather", "china", "digits"):
                page.page.set_input_files("#file", SAMPLES.parent / f"mandarin_{name}.flac")
                page.wait_idle()
            page.page.screenshot(path=IMAGES / "page-mandarin.png")
        server.wait_idle()


if __name__ == "__main__":
    main()

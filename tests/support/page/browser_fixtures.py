"""Pytest plugin of the browser tests: Chromium, and the models of the server.

A module gets both by `pytest_plugins = ["tests.support.page.browser_fixtures"]`, and they last as long as that module:
while Playwright runs, nothing else may run an event loop in its thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

from model.acoustic import load_model
from model.decoder import decoder_of
from tests.support.audio.speech import SAMPLES
from tests.support.needs import need_programs
from tests.support.page.browser import PROGRAM, chromium, microphone_file

RECORDING = SAMPLES.parent / "porch_fan.flac"  # played by the microphone


@pytest.fixture(scope="module")
def served() -> dict[str, Any]:
    """Options of a server with the shipped model and language model."""
    model = load_model()
    return {"model": model, "decoder": decoder_of(model.facts)}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Chromium, whose microphone plays `RECORDING`; without it the tests are skipped, in CI they fail."""
    need_programs(PROGRAM)
    with chromium(microphone_file(RECORDING, tmp_path_factory.mktemp("microphone"))) as started:
        yield started

"""The add-on for Home Assistant OS: its variables are settings, and its port is the one that it serves."""

from __future__ import annotations

from importlib.metadata import version

import yaml

from server.settings import Settings
from tests.support.audio.speech import ROOT

ADD_ON = yaml.safe_load((ROOT / "deploy" / "home-assistant" / "config.yaml").read_text(encoding="utf-8"))
REQUIRED = {
    "name",
    "description",
    "version",
    "slug",
    "arch",
}  # Source: developers.home-assistant.io, add-on configuration


def test_the_add_on_has_what_home_assistant_requires() -> None:
    assert set(ADD_ON) >= REQUIRED
    assert ADD_ON["version"] == version("tutti-asr")


def test_its_variables_are_settings_that_open_its_port_to_other_containers() -> None:
    given = {name.removeprefix("TUTTI_").lower(): value for name, value in ADD_ON["environment"].items()}
    settings = Settings(**given)
    address = settings.addresses["wyoming_port"]
    assert not address.is_local
    assert set(ADD_ON["ports"]) == {f"{address.port}/tcp"}
    assert settings.addresses["port"].is_local, "the port with HTTP stays inside"

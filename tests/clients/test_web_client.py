"""The page's JavaScript without a browser: its tests under node, and the files that the page refers to."""

import re
import subprocess

import pytest

from server.http.page import ASSETS, PAGE
from tests.support.audio.speech import ROOT
from tests.support.needs import need_programs

WEB = ROOT / "server" / "web"
IMPORT = re.compile(r'from "([^"]+)"|URL\("([^"]+)", import')


@pytest.mark.parametrize(("suite", "least"), [("tutti_client", 27), ("continuity", 7)])
def test_the_javascript_client_passes_its_tests(suite, least):
    need_programs("node")
    run = subprocess.run(
        ["node", "--test", f"tests/clients/{suite}.test.mjs"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    assert int(re.search(r"^# pass (\d+)$", run.stdout, re.MULTILINE)[1]) >= least


def test_every_file_of_the_page_is_served():
    assert {path.name for path in WEB.iterdir()} == {PAGE, *ASSETS}


def test_files_named_by_the_page_are_served():
    named = set(re.findall(r'(?:src|href)="([^"]+)"', (WEB / PAGE).read_text()))
    assert named >= {"web/app.js", "web/style.css", "docs"}
    assert all(name.removeprefix("web/") in ASSETS for name in named - {"docs"})
    for script in WEB.glob("*.js"):
        source = script.read_text()
        imported = {module.removeprefix("./") or worklet for module, worklet in IMPORT.findall(source)}
        assert imported <= set(ASSETS)
        assert not re.search(r"(http|ws)s?://[a-z]", source)


@pytest.mark.parametrize("name", ["style.css", "index.html"])
def test_the_page_has_no_external_and_no_inline_code(name):
    """The page's Content-Security-Policy refuses both in a browser."""
    text = (WEB / name).read_text()
    assert not re.search(r"//[a-z]|@import|url\(| style=| on[a-z]+=|<style", text)

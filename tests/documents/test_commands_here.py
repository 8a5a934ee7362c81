"""Commands of the documents, run as a reader would type them, on small inputs; what they print is what is promised."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.documents.blocks import Command
from tests.support.documents.classes import Here, ours, placed
from tests.support.documents.session import WITHIN_S, prepare, session
from tests.support.needs import need_programs

PAGES = sorted({command.document for command, place in placed().items() if isinstance(place, Here)})
PRINTS: Mapping[str, str] = {  # what is printed, by the beginning of the command
    "tutti usage ": r"^bank\b",
    "tutti transcribe talk.flac": "where is my order",
    "tutti transcribe call.wav --multichannel --channel-names Caller,Agent": r"^Caller: .*\nAgent: ",
    "tutti evaluate ": "0\\.\\d+",
    "curl ": r'"transcript": ?"[^"]*(where is my order|account number)',
}
pytestmark = pytest.mark.timeout(5 * WITHIN_S)


@pytest.mark.parametrize("document", PAGES)
def test_the_commands_of_a_document_run_in_their_order(document: str, tmp_path: Path) -> None:
    need_programs("bash", "curl")
    prepare(document, tmp_path / "reader")
    with session(tmp_path / "reader") as reader:
        for command, place in placed().items():
            if command.document == document and isinstance(place, Here):
                check_printed(command, reader.run(command))
        reader.drained()


def check_printed(command: Command, printed: str) -> None:
    """Check what a command prints."""
    for start, pattern in PRINTS.items():
        if ours(command).startswith(start) and "--out" not in command.plain:
            assert re.search(pattern, printed, re.IGNORECASE | re.MULTILINE), f"{command.where}: {printed[-2_000:]}"

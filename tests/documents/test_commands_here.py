"""Commands of the documents, run as a reader would type them, on small inputs; what they print is what is promised."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.documents.blocks import Command, commands
from tests.support.documents.session import WITHIN_S, prepare, session
from tests.support.needs import need_programs

RUN: Mapping[str, tuple[str, ...]] = {  # beginnings of the commands that are run; others are only parsed
    "README.md": ("make serve", "curl ", ".venv/bin/tutti transcribe ", ".venv/bin/tutti model fetch"),
    "SECURITY.md": ("tutti keys new ", "tutti serve --api-keys-file "),
    "deploy/README.md": ("tutti transcribe ",),
    "docs/contact-center.md": (
        *("python -", "tutti transcribe ", "curl ", "tutti evaluate ", "TUTTI_TWILIO_AUTH_TOKEN=", "tutti keys new "),
        *(
            "tutti serve --audiosocket-port ",
            "tutti usage ",
            "tutti keys receipt ",
            "TUTTI_RECEIPT_KEY_FILE=",
            "printf ",
            "tutti serve --written-forms ",
        ),
    ),
    "docs/determinism.md": ("python -m model.evaluation.digest",),
    "docs/training.md": (
        *("tutti evaluate ", "python -m tutti_asr_lab.training.acoustic.averaging ", "tutti serve ", "tutti lm train "),
        "tutti lm perplexity ",
    ),
    "docs/sizing.md": ("tutti serve",),
    "docs/measured.md": (".venv/bin/tutti serve ",),
    "docs/models.md": (
        *("tutti model check ", "tutti serve", "tutti evaluate --model ", "tutti evaluate --language "),
        *("tutti transcribe ", "tutti lm train "),
    ),
    "docs/own-models.md": ("tutti export DIR",),
    "docs/speakers.md": ("tutti serve --speakers", "tutti voice "),
    "docs/usage.md": ("TUTTI_USAGE_LOG=", "tutti usage "),
    "docs/voice-agents.md": ("tutti serve ",),
}
PRINTS: Mapping[str, str] = {  # what is printed, by the beginning of the command
    "tutti usage ": r"^bank\b",
    "tutti transcribe talk.flac": "where is my order",
    "tutti transcribe call.wav --multichannel --channel-names Caller,Agent": r"^Caller: .*\nAgent: ",
    "tutti voice enroll ": r"^ada: enrolled from \d",
    "tutti voice list ": r"^ada: .* for the key bank$",
    "tutti evaluate ": "0\\.\\d+",
    "curl -f -X POST ": r'^\{"uuid":"40325ec2-.*","expires_in":120\}$',
    "curl --data-binary ": r'"transcript": ?"[^"]*(where is my order|account number)',
}
pytestmark = pytest.mark.timeout(5 * WITHIN_S)


@pytest.mark.parametrize("document", RUN)
def test_the_commands_of_a_document_run_in_their_order(document: str, tmp_path: Path) -> None:
    need_programs("bash", "curl")
    chosen = [each for each in commands() if each.document == document and each.plain.startswith(RUN[document])]
    assert {start for start in RUN[document] for each in chosen if each.plain.startswith(start)} == {*RUN[document]}
    prepare(document, tmp_path / "reader")
    with session(tmp_path / "reader") as reader:
        for command in chosen:
            check_printed(command, reader.run(command))
        reader.drained()


def check_printed(command: Command, printed: str) -> None:
    """Check what a command prints."""
    for start, pattern in PRINTS.items():
        if command.plain.removeprefix(".venv/bin/").startswith(start) and "--out" not in command.plain:
            assert re.search(pattern, printed, re.IGNORECASE | re.MULTILINE), f"{command.where}: {printed[-2_000:]}"

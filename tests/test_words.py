"""Words of the house's old dialect, each with a plain word that says the same: none stands in a document.

`git ls-files` lists the files, and `SCOPE` chooses among them.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SCOPE = (".",)
WORDS = re.compile(
    r"\b(behind|beside|in place of|so many|told|heard|goes on|whoever|nobody|(?<!there )(?-i:is none)|is to be"
    r"|what came of)\b",
    re.IGNORECASE,
)
ALLOWED = re.compile(  # real uses, also in links (#behind-a-proxy), and names on a wire
    r"\bbehind[ -](?:(?:an?|its|the|your)[ -])?(?:\w+ ){0,2}(?:load balancers?|prox(?:y|ies)|HAProxy|nginx|Envoy)\b"
    r'|--beside|name="beside"|\btold: |messages/told',
    re.IGNORECASE,
)
ELSEWHERE = (  # records of their time, texts of others, and this list
    r"(.*/)?LOG\.md|loadtest/results/.*|(.*/)?[\w-]*LICENSE[\w.-]*"
    r"|.*\.(arpa|gz|jsonl|lock|onnx|safetensors|svg|txt)|tests/test_words\.py"
)


def found(text: str) -> Iterator[tuple[int, str]]:
    """Line numbers and words, without their real uses."""
    for number, line in enumerate(text.splitlines(), 1):
        yield from ((number, word.group()) for word in WORDS.finditer(ALLOWED.sub("", line)))


def test_documents_use_plain_words() -> None:
    listed = subprocess.run(["git", "ls-files", "-z", *SCOPE], cwd=ROOT, capture_output=True, text=True, check=True)
    names = [name for name in listed.stdout.split("\0") if name and not re.fullmatch(ELSEWHERE, name)]
    assert names
    texts = ((name, (ROOT / name).read_bytes()) for name in names if (ROOT / name).is_file())
    readable = ((name, content.decode()) for name, content in texts if b"\0" not in content)
    wrong = [f"{name}:{number}: {word}" for name, text in readable for number, word in found(text)]
    assert not wrong, "\n".join(["say it in a plainer word:", *wrong])


def test_a_planted_word_is_found_and_a_real_use_is_not() -> None:
    assert [*found("One line.\nSo many are Told.")] == [(2, "So many"), (2, "Told")]
    assert [*found("`nobody`, untold, and retold_behind")] == [(1, "nobody")]
    assert [*found("Replicas behind a load balancer, behind HAProxy, nginx, and behind a WebSocket proxy")] == []
    assert [*found("behind the words, behind a proxy")] == [(1, "behind")]

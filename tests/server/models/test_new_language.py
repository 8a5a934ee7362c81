"""A third language, as docs/new-language.md says: its commands run as they stand, and what comes out is served."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from random import Random

import pytest

from model.evaluation.scoring import Score, score
from model.recordings import Utterance, read_manifest
from server.models.loading import load_served
from server.models.registry import outlines_of
from server.settings import Settings
from tests.support.audio.speech import ROOT
from tests.support.needs import need_programs
from tests.support.servers.live_server import LiveServer

PAGE = (ROOT / "docs" / "new-language.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+) ?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LIMIT_S = 300.0  # of one block, on a slow machine without bf16
pytestmark = pytest.mark.timeout(3 * LIMIT_S)
STREAMED = 40  # held-out recordings that are streamed

# Of home-automation sentences, which a network learns in a minute.
VERBS = ("abre", "cierra", "mira", "limpia", "busca")
THINGS = ("la puerta", "la ventana", "la caja", "el cajón", "el baño")
PLACES = ("de la cocina", "del salón", "del niño", "de mañana", "de mi señora")
SWITCHES = ("enciende", "apaga", "sube", "baja")
DEVICES = ("la luz", "la radio", "el televisor", "la música")
NUMBERS = ("uno", "dos", "tres", "cuatro", "cinco", "seis", "siete", "ocho", "nueve", "diez")
HELD_OUT = 24


def write_texts(folder: Path) -> None:
    """Write `sentences.txt`, `held.txt` with other sentences of the same words, and `words.tsv` with single words."""
    rng = Random(1)
    said = {f"{verb} {thing}" for verb, thing in product(VERBS + SWITCHES, THINGS)}
    said |= {f"{verb} {thing} {rng.choice(PLACES)}" for verb, thing in product(VERBS, THINGS)}
    said |= {f"{verb} {thing} a las {rng.choice(NUMBERS[1:])}" for verb, thing in product(SWITCHES, DEVICES)}
    said |= {" ".join(rng.choices(NUMBERS, k=rng.randint(2, 5))) for _ in range(60)}
    sentences = rng.sample(sorted(said), len(said))
    words = sorted({word for sentence in sentences for word in sentence.split()})
    written = {"held.txt": sentences[:HELD_OUT], "sentences.txt": sentences[HELD_OUT:], "words.tsv": words}
    for name, lines in written.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which every command of the page was run."""
    need_programs("espeak-ng", "flite")
    folder = tmp_path_factory.mktemp("spanish")
    write_texts(folder)
    blocks = BLOCK.findall(PAGE)
    for _, name, text in blocks:
        if name:
            (folder / name).write_text(text, encoding="utf-8")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for kind, _, text in blocks:
        if kind == "sh":
            done = subprocess.run(
                ["bash", "-ec", text],
                cwd=folder,
                env={**os.environ, "PATH": path, "OMP_WAIT_POLICY": "passive"},
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
            assert done.returncode == 0, f"{text}\n{done.stdout[-2_000:]}\n{done.stderr[-2_000:]}"
    return folder


def upload(server: LiveServer, utterance: Utterance, **query: str) -> str:
    with server.http as http:
        answer = http.post("/v1/listen", params=query, content=utterance.audio.read_bytes()).json()
    transcript: str = answer["results"]["channels"][0]["alternatives"][0]["transcript"]
    return transcript


def test_unseen_sentences_of_unseen_voices_are_recognized_while_english_is_served(
    made: Path, live_server: Callable[..., LiveServer]
) -> None:
    settings = Settings(models_file=made / "models.toml")
    loaded, _ = load_served(settings)
    assert [model.name for model in loaded] == ["en"]
    server = live_server(model=loaded, outlines=outlines_of(settings), max_streams=64)
    held_out = read_manifest(made / "held" / "synthetic.jsonl")[:STREAMED]
    total = Score()
    for utterance in held_out:
        total += score(utterance.text, upload(server, utterance, language="es"))
    assert total.wer < 0.1
    assert any("ñ" in utterance.text for utterance in held_out)
    english = read_manifest(ROOT / "model" / "samples" / "samples.jsonl")[0]
    assert upload(server, english) == english.text


def test_a_word_that_no_text_has_is_pronounced_by_learned_rules(made: Path) -> None:
    decoder = load_served(Settings(model=made / "es.safetensors", lm=made / "es-words.arpa.gz"))[0][0].decoder
    lexicon = decoder.phone_lexicon.lexicon
    assert "mañas" not in lexicon.words
    (said,) = lexicon.pronounce("mañas")
    assert "".join(said).startswith("maɲ")


def test_training_without_a_lexicon_says_what_is_missing(made: Path) -> None:
    words = ["train", "--manifest", "train/synthetic.jsonl", "--recipe", "recipe.json", "--out", "x.safetensors"]
    done = subprocess.run(
        [Path(sys.executable).parent / "tutti", *words, "--processes", "1", "--cache", "audio"],
        cwd=made,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 1
    assert "pronunciations of 'es' are not built in: give --lexicon (docs/new-language.md)" in done.stderr

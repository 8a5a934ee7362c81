"""A small corpus of Spanish home-automation sentences, which a network learns in a minute."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from random import Random

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
    _write(folder / "held.txt", sentences[:HELD_OUT])
    _write(folder / "sentences.txt", sentences[HELD_OUT:])
    _write(folder / "words.tsv", words)


def _write(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

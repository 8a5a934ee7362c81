"""Generated text: reproducible, clean, in the stated mix, and never a shipped sample."""

import re
from collections import Counter
from itertools import islice

import pytest

from loadtest.generator.recordings import shipped_manifest
from model.recordings import read_manifest
from tutti_asr_lab.training.synthesis import spoken_numbers as numbers
from tutti_asr_lab.training.synthesis.sentences import MAX_WORDS, MIX, Sentence, Split, sample_texts, sentences
from tutti_asr_lab.training.synthesis.wordlists import (
    COMMANDS_FILE,
    VOCABULARY_FILE,
    parse_noun,
    parse_verb,
    read_sections,
)

_CLEAN = re.compile(r"[a-z']+( [a-z']+)*")


def draw(count: int, seed: int = 1, split: Split = "train") -> list[Sentence]:
    return list(islice(sentences(seed, split), count))


@pytest.fixture(scope="module")
def corpus() -> list[Sentence]:
    return draw(6000)


def test_same_seed_gives_same_sentences(corpus: list[Sentence]) -> None:
    assert draw(300) == corpus[:300]
    assert draw(300, seed=2) != corpus[:300]


def test_alphabet_is_letters_apostrophe_and_single_spaces(corpus: list[Sentence]) -> None:
    assert [sentence for sentence in corpus if not _CLEAN.fullmatch(sentence.text)] == []


def test_kinds_come_in_the_stated_proportions(corpus: list[Sentence]) -> None:
    counts = Counter(sentence.kind for sentence in corpus)
    for kind, share in MIX.items():
        assert counts[kind] / len(corpus) == pytest.approx(share, abs=0.03)


def test_lengths_are_bounded_and_vocabulary_is_wide(corpus: list[Sentence]) -> None:
    lengths = [len(sentence.text.split()) for sentence in corpus]
    assert max(lengths) <= MAX_WORDS
    assert 5.5 < sum(lengths) / len(lengths) < 8
    assert len({word for sentence in corpus for word in sentence.text.split()}) > 3000


def test_a_drawn_sample_text_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The generators can produce a sample text, which the stream drops."""
    held_out = next(sentence.text for sentence in draw(50) if sentence.kind == "command")
    monkeypatch.setattr("tutti_asr_lab.training.synthesis.sentences.SAMPLE_SENTENCES", (held_out,))
    assert held_out not in {sentence.text for sentence in draw(50)}


def test_every_shipped_recording_is_held_out() -> None:
    recordings = read_manifest(shipped_manifest())
    texts = {each.text for each in recordings if each.audio.stem != "demo"}  # which consists of three of the others
    assert len(texts) > 10
    assert texts <= sample_texts()


def test_train_and_dev_share_no_sentence(corpus: list[Sentence]) -> None:
    train = {sentence.text for sentence in corpus if " " in sentence.text}
    dev = {sentence.text for sentence in draw(150, seed=1, split="dev") if " " in sentence.text}
    assert not train & dev


def test_every_slot_of_every_template_is_defined() -> None:
    sections = read_sections(COMMANDS_FILE, r"\s*,\s*")
    computed = {"n", "digits", "time", "date", "duration", "amount", "percent", "ordinal", "person"}
    used = {slot for template in sections["templates"] for slot in re.findall(r"\{(\w+)\}", template)}
    assert used - computed == set(sections) - {"templates"}


def test_every_word_class_of_the_vocabulary_is_filled() -> None:
    assert all(len(words) >= 20 for words in read_sections(VOCABULARY_FILE, r"\s+").values())


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "zero"),
        (14, "fourteen"),
        (40, "forty"),
        (205, "two hundred and five"),
        (1_007, "one thousand and seven"),
        (21_340, "twenty one thousand three hundred and forty"),
    ],
)
def test_cardinals(value: int, words: str) -> None:
    assert numbers.cardinal(value) == words


@pytest.mark.parametrize(
    ("value", "words"), [(1, "first"), (12, "twelfth"), (20, "twentieth"), (31, "thirty first"), (15, "fifteenth")]
)
def test_ordinals(value: int, words: str) -> None:
    assert numbers.ordinal(value) == words


def test_cardinal_refuses_numbers_out_of_range() -> None:
    with pytest.raises(ValueError, match="1000000"):
        numbers.cardinal(1_000_000)


@pytest.mark.parametrize(
    ("entry", "forms"),
    [
        ("stop", ("stop", "stops", "stopped", "stopped", "stopping")),
        ("carry", ("carry", "carries", "carried", "carried", "carrying")),
        ("take:took:taken", ("take", "takes", "took", "taken", "taking")),
        ("fix", ("fix", "fixes", "fixed", "fixed", "fixing")),
        ("hit:hit:hit:hitting", ("hit", "hits", "hit", "hit", "hitting")),
        ("visit", ("visit", "visits", "visited", "visited", "visiting")),
    ],
)
def test_verb_forms(entry: str, forms: tuple[str, ...]) -> None:
    verb = parse_verb(entry)
    assert (verb.base, verb.third, verb.past, verb.participle, verb.gerund) == forms


@pytest.mark.parametrize(
    ("entry", "plural"), [("knife:knives", "knives"), ("box", "boxes"), ("city", "cities"), ("toy", "toys")]
)
def test_plurals(entry: str, plural: str) -> None:
    assert parse_noun(entry).plural == plural

"""Generated Mandarin commands: pronounceable, with titles of the training recordings, deterministic."""

from __future__ import annotations

from itertools import islice

from model.text.chinese import sentences_of
from tutti_asr_lab.training.lexicon.pinyin import are_syllables, syllables_of
from tutti_asr_lab.training.mandarin.commands import commands, titles_of


def test_titles_are_taken_from_commands_that_ask_for_a_song() -> None:
    assert titles_of(["想听歌曲剑心", "来一首歌曲父亲", "想听歌曲剑心", "设定三十度", "想听歌曲"]) == ("剑心", "父亲")


def test_commands_are_pronounceable_characters_and_deterministic() -> None:
    said = list(islice(commands(["剑心"], seed=3), 2_000))
    assert said == list(islice(commands(["剑心"], seed=3), 2_000))
    assert said != list(islice(commands(["剑心"], seed=4), 2_000))
    assert all(sentences_of(text) == [text] for text in said)
    assert sum(are_syllables(syllables_of(text)) for text in said) > 1_900  # not "嗯", which has no vowel


def test_commands_contain_given_titles_other_titles_places_and_degrees() -> None:
    said = list(islice(commands(["剑心"]), 2_000))
    assert 100 < sum("剑心" in text for text in said) < 800
    assert sum("度" in text for text in said) > 50
    assert len({text for text in said if text.startswith(("导航", "去"))}) > 50
    assert not any("剑心" in text for text in islice(commands([]), 200))

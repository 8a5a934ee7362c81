"""Grammars that were ignored silently, and language models with words missing from the lexicon."""

import gzip
import shutil

import pytest

from model.checkpoint import SHIPPED, outline
from model.ctc.bias import NO_BIAS
from model.ctc.phones import UNSPELLED
from model.decoder import GRAMMARS, Language, _grammar_files
from model.errors import LanguageModelError, LexiconError

DIGITS = GRAMMARS / "en-digits.arpa"


def test_a_folder_of_grammars_that_is_missing_or_empty_is_named(tmp_path):
    with pytest.raises(LanguageModelError, match=r"--grammars .*none: there is no such folder"):
        _grammar_files(tmp_path / "none")
    with pytest.raises(LanguageModelError, match=r"it has no LANGUAGE-NAME\.arpa"):
        _grammar_files(tmp_path)


@pytest.mark.parametrize("name", ["names.arpa", "-names.arpa", "english-names.arpa.gz", "en-.arpa", "EN-names.arpa"])
def test_a_grammar_file_without_a_language_in_its_name_is_reported(tmp_path, name):
    shutil.copy(DIGITS, tmp_path / name)
    with pytest.raises(LanguageModelError, match=rf"{name} is not named LANGUAGE-NAME"):
        _grammar_files(tmp_path)


def test_a_gzipped_grammar_is_one(tmp_path):
    path = tmp_path / "en-codes.arpa.gz"
    path.write_bytes(gzip.compress(DIGITS.read_bytes()))
    assert _grammar_files(tmp_path) == [path]


def model_of(folder, words):
    path = folder / "own.arpa"
    head = f"\\data\\\nngram 1={len(words) + 3}\n\n\\1-grams:\n-1\t<unk>\n-99\t<s>\n-1\t</s>\n"
    path.write_text(head + "".join(f"-1\t{word}\n" for word in words) + "\n\\end\\\n", encoding="utf-8")
    return path


def test_a_language_model_with_most_words_missing_from_the_lexicon_is_rejected(tmp_path):
    phones = outline(SHIPPED)[0].phones
    with pytest.raises(LexiconError, match="pronounces 1 of its 3 words"):
        Language.load(model_of(tmp_path, ["hello", "привет", "мир"]), phones)


def test_speech_without_a_word_of_the_language_model_is_not_written_in_phones(tmp_path):
    language = Language.load(model_of(tmp_path, ["hello", "world", "мир"]), outline(SHIPPED)[0].phones)
    assert language.phone_lexicon.spell(NO_BIAS.in_letters(), [1, 2, 3]) == UNSPELLED

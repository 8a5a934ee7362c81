"""Several models as operators write them: `--model NAME=PATH`, its variable, and tables of a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from server.configuration.models_file import ModelEntry
from server.errors import SettingsError
from server.models.loading import load_served
from server.models.registry import outlines_of
from server.settings import SHIPPED_ON_DEMAND, Settings


def read(folder: Path, text: str) -> Settings:
    file = folder / "models.toml"
    file.write_text(text)
    return Settings(models_file=file)


def test_one_path_is_one_model_as_ever() -> None:
    for given in (Path("a/b"), "a/b", ["a/b"], "./x=y"):
        settings = Settings(model=given)  # type: ignore[arg-type]
        assert settings.model == Path(given[0] if isinstance(given, list) else given)
        assert settings.of_models() == ((None, settings),)
    assert Settings().of_models()[0][1].model is None


def test_named_paths_are_models_the_first_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    given = Settings(model=["en=models/a", "es=b"])  # type: ignore[arg-type]
    monkeypatch.setenv("TUTTI_MODEL", "en=models/a,es=b")
    for settings in (given, Settings()):
        models = [(entry.name, own.model) for entry, own in settings.of_models() if entry is not None]
        assert models == [("en", Path("models/a")), ("es", Path("b"))]
    monkeypatch.setenv("TUTTI_MODEL", "models/a")
    assert Settings().model == Path("models/a")


@pytest.mark.parametrize(
    ("given", "said"), [(["en=a", "b"], "'b' is not NAME=PATH"), (["en=a", "EN=b"], "two models are named 'EN'")]
)
def test_a_wrong_list_is_refused(given: list[str], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Settings(model=given)  # type: ignore[arg-type]


def test_a_file_of_models_with_settings_of_their_own(tmp_path: Path) -> None:
    settings = read(
        tmp_path,
        """
        [[model]]
        name = "en"
        path = "english"

        [[model]]
        name = "iberia"
        path = "/models/iberia"
        languages = ["es", "pt"]
        decoder = "beam"
        lm = "es.arpa"
        default = true
        """,
    )
    (first, iberia), (second, english) = settings.of_models()
    assert first is not None
    assert second is not None
    assert (first.name, first.languages, second.name, second.languages) == ("iberia", ("es", "pt"), "en", ())
    assert (iberia.model, iberia.decoder, iberia.lm) == (Path("/models/iberia"), "beam", tmp_path / "es.arpa")
    assert (english.model, english.decoder, english.lm) == (tmp_path / "english", "auto", None)
    ((alone, own),) = settings.of_default.of_models()
    assert (alone, own) == (first, iberia), "also what its entry alone says"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there is no table"),
        ("model = 3", "there is no table"),
        ("[en]\npath='a'", "the key 'en' is not known; each model is a table"),
        ("[[model]]\npath='a'", r"\[\[model\]\] 1: name: field required"),
        ("[[model]]\nname='en'", r"\[\[model\]\] 1 \('en'\): path: field required"),
        ("[[model]]\nname='a b'\npath='a'", r"\[\[model\]\] 1 \('a b'\): name: 'a b' is not a name: 1 to 64 letters"),
        (
            "[[model]]\nname='en'\npath='a'\n[[model]]\nname='es'\npath='b'\ndecodr='beam'",
            r"\[\[model\]\] 2 \('es'\): decodr: is not a key of a model",
        ),
        (
            "[[model]]\nname='en'\npath='a'\ndecoder='best'",
            r"\[\[model\]\] 1 \('en'\): decoder: input should be 'auto'",
        ),
        ("[[model]]\nname='en'\npath='a'\nlanguages='en'", r"\[\[model\]\] 1 \('en'\): languages: input should be"),
        ("[[model]]\nname='en'\npath='a'\n[[model]]\nname='En'\npath='b'", "name: two models are named 'En'"),
        (
            "[[model]]\nname='en'\npath='a'\ndefault=true\n[[model]]\nname='es'\npath='b'\ndefault=true",
            "default: only one model can be the default, and 'en' and 'es' are",
        ),
        ("[[model]", "models.toml: "),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_table_and_key(tmp_path: Path, text: str, said: str) -> None:
    settings = read(tmp_path, text)
    with pytest.raises(SettingsError, match=said) as refused:
        settings.of_models()
    assert "\n" not in str(refused.value).removesuffix("\n")


def test_a_file_and_a_model_are_not_given_together(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="cannot be combined"):
        Settings(models_file=tmp_path / "x", model=tmp_path)


def test_a_file_that_is_missing_is_said_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"models_file: .*No such file"):
        Settings(models_file=tmp_path / "none.toml").of_models()


def test_without_settings_the_shipped_models_are_served_the_others_on_demand() -> None:
    named = [(entry.name, entry.on_demand) for entry, _ in Settings().of_models() if entry is not None]
    assert named == [(name, True) for name in ("tutti-fast", "tutti-economy", "tutti-gru", "tutti-mandarin")]
    *_, mandarin = outlines_of(Settings())
    loaded, _ = load_served(Settings(model=["zh=tutti-mandarin"]))
    assert (mandarin.languages, mandarin.card.uuid) == (("zh",), loaded[0].card.uuid)
    assert (mandarin.card.version, mandarin.card.architecture) == (loaded[0].card.version, "ctc-rnn")
    for alone in (Settings(model="tutti-gru"), Settings(model=["en=tutti-gru"])):
        assert not any(outline.on_demand for outline in outlines_of(alone))


def test_a_language_model_of_words_is_for_all_english_models_and_not_for_characters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    another = ModelEntry(name="another", path=Path("tutti-gru"), languages=("en",), on_demand=True)
    monkeypatch.setattr("server.settings.SHIPPED_ON_DEMAND", (another, *SHIPPED_ON_DEMAND))
    found = [own.lm for _, own in Settings(lm="words.arpa").of_models()]
    english = [entry for entry in SHIPPED_ON_DEMAND if entry.languages == ("en",)]
    assert found == [Path("words.arpa")] * (2 + len(english)) + [None]
    assert {own.lm for _, own in Settings(lm="off").of_models()} == {"off"}


def test_a_file_says_which_models_wait_for_demand(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    english, mandarin = '[[model]]\nname = "en"\npath = "tutti-gru"\n', '[[model]]\nname = "zh"\npath = "a"\n'
    file.write_text(f"{mandarin}on_demand = true\n{english}")
    listed = [(entry.name, entry.on_demand) for entry, _ in Settings(models_file=file).of_models() if entry]
    assert listed == [("en", False), ("zh", True)], "the default is one that is loaded"
    for text, wrong in (
        (f"{mandarin}on_demand = true\n", "one model has to be loaded at the start"),
        (f"{english}{mandarin}on_demand = true\ndefault = true\n", "'zh' is the default, which is loaded at the start"),
    ):
        file.write_text(text)
        with pytest.raises(SettingsError, match=wrong):
            Settings(models_file=file).of_models()


def test_a_published_model_on_demand_needs_languages(tmp_path: Path) -> None:
    graph, file = tmp_path / "model.onnx", tmp_path / "models.toml"
    graph.write_bytes(b"not read")
    table = f'[[model]]\nname = "en"\npath = "tutti-gru"\n[[model]]\nname = "x"\npath = "{graph}"\non_demand = true\n'
    file.write_text(table)
    with pytest.raises(
        SettingsError, match="models_file: the model 'x' is loaded on demand, so `languages` must be set for it"
    ):
        outlines_of(Settings(models_file=file))
    file.write_text(table + 'languages = ["de"]\n')
    assert outlines_of(Settings(models_file=file))[1].languages == ("de",)

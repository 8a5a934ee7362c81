"""Choice of a model by name and language: names in any case, aliases, tags looked up as BCP 47 says, refusals."""

from __future__ import annotations

import pytest

from server.errors import BadParameter, SettingsError
from server.models.selection import ANY, ModelNames, is_english, is_language, language_name

SERVED: dict[str, tuple[str, ...]] = {"en": ("en",), "Iberia": ("es", "pt-BR"), "paris": ("fr-FR",)}
ALIASES = {"nova-3-es": "iberia", "nova-3": "default"}


def names(served: dict[str, tuple[str, ...]] | None = None) -> ModelNames:
    return ModelNames(served or SERVED, ALIASES | {ANY: "default"})


@pytest.mark.parametrize(
    ("model", "language", "chosen"),
    [
        (None, None, "en"),
        ("iberia", None, "Iberia"),
        ("IBERIA", "es-419", "Iberia"),
        ("nova-3", None, "en"),
        ("nova-3", "es", "Iberia"),
        ("nova-3-es", None, "Iberia"),
        ("nova-3-es", "fr", "paris"),
        ("whatever", "pt", "Iberia"),
        (None, "en-US", "en"),
        (None, "EN_gb", "en"),
        (None, "fr", "paris"),
        (None, "fr-CA", "paris"),
        (None, "multi", "en"),
        (None, "English", "en"),
        (None, "portuguese", "Iberia"),
        ("paris", "french", "paris"),
        ("", "", "en"),
    ],
)
def test_name_alias_and_language_choose(model: str | None, language: str | None, chosen: str) -> None:
    assert names().choose(model, language) == chosen


@pytest.mark.parametrize(
    ("model", "language", "said"),
    [
        (None, "de", "language: 'de' is not served here; there is en (en), Iberia (es, pt-BR), paris (fr-FR)"),
        ("whatever", "german", "language: 'german' is not served here"),
        ("whatever", "klingon", "language: 'klingon' is not served here"),
        ("whatever", "haitian creole", "language: 'haitian creole' is not served here"),
        ("paris", "en", "language: the model 'paris' has fr-FR, not 'en'"),
        ("iberia", "e", "language: the model 'Iberia' has es, pt-BR, not 'e'"),
    ],
)
def test_a_language_that_is_not_served_is_refused_with_what_is(model: str | None, language: str, said: str) -> None:
    with pytest.raises(BadParameter) as refused:
        names().choose(model, language)
    assert str(refused.value).startswith(said)


def test_the_closest_tag_wins_and_a_model_of_unknown_languages_takes_what_is_left() -> None:
    served: dict[str, tuple[str, ...]] = {"any": (), "zh-CN": ("zh-CN",), "zh-TW": ("zh-TW",), "en": ("en",)}
    chosen = {tag: names(served).choose(None, tag) for tag in ("zh-TW", "zh-CN", "zh", "en-US", "sw", "x")}
    assert chosen == {"zh-TW": "zh-TW", "zh-CN": "zh-CN", "zh": "zh-CN", "en-US": "en", "sw": "any", "x": "any"}
    assert names(served).choose("ANY", "es") == "any"
    assert names({"zh-TW": ("zh-TW",), "zh": ("zh",)}).choose(None, "zh") == "zh", "the tag itself before longer ones"


@pytest.mark.parametrize("language", ["x!", "-1", "1e3", "en us", "en\n", "٣"])
def test_what_is_no_language_tag_is_refused_by_every_model(language: str) -> None:
    with pytest.raises(BadParameter, match=r"^language: .* is not a language tag"):
        names({"any": ()}).choose(None, language)


@pytest.mark.parametrize(
    "name", ["flux-general-en", "flux-general-multi", "Flux-General-EN", "flux", "aura-2-thalia-en"]
)
def test_a_model_of_another_kind_is_refused_by_name_unless_the_operator_maps_it(name: str) -> None:
    for aliases in ({}, {ANY: "tiny"}):
        with pytest.raises(BadParameter, match=f"^model: '{name}' is a "):
            ModelNames({"tiny": ("en",)}, aliases).choose(name, None)
    assert ModelNames({"tiny": ("en",)}, {name: "tiny"}).choose(name, None) == "tiny"
    assert ModelNames({name: ("en",)}, {}).choose(name, None) == name
    assert ModelNames({"tiny": ("en",)}, {"*": "tiny"}).choose("fluxus-1", None) == "tiny"


def test_several_languages_are_those_of_one_model() -> None:
    served = names({"english": ("en",), "iberia": ("es", "pt")})
    assert served.one_language("languages", None, ["pt", "es"]) == "pt"
    assert served.one_language("languages", None, []) is None
    with pytest.raises(BadParameter, match=r"^languages: 'en, es' need several models"):
        served.one_language("languages", None, ["en", "es"])
    with pytest.raises(BadParameter, match=r"^languages: 'de' is not served here"):
        served.one_language("languages", None, ["de"])


def test_a_shipped_model_has_its_former_name_unless_that_is_an_alias() -> None:
    served: dict[str, tuple[str, ...]] = {"new": ("en",), "tutti-gru": ("en",)}
    assert {names(served).choose(name, None) for name in ("tutti-small", "TUTTI-SMALL", "tutti-gru")} == {"tutti-gru"}
    assert ModelNames(served, {"nova-3": "tutti-small"}).choose("nova-3", None) == "tutti-gru"
    assert ModelNames(served, {"tutti-small": "new"}).choose("tutti-small", None) == "new"
    assert names({"new": ("en",)}).known("tutti-small") is None


def test_the_default_is_first_among_models_of_one_language() -> None:
    served: dict[str, tuple[str, ...]] = {"small": ("en",), "large": ("en",)}
    assert names(served).choose(None, "en-US") == "small"
    assert names(served).choose("large", "en-US") == "large"


def test_without_an_alias_for_any_name_only_served_names_and_aliases_choose() -> None:
    strict = ModelNames(SERVED, ALIASES)
    assert [strict.choose(name, None) for name in ("EN", "nova-3", "nova-3-es")] == ["en", "en", "Iberia"]
    with pytest.raises(BadParameter, match="model: 'whisper-1' is not served here; there is en"):
        strict.choose("whisper-1", None)


def test_an_alias_for_any_name() -> None:
    chosen = ModelNames(SERVED, {"*": "paris"})
    assert [chosen.choose(name, None) for name in ("whisper-1", "en", None)] == ["paris", "en", "en"]
    with pytest.raises(SettingsError, match=r"^model_aliases: \*: 'rome' is not 'default' nor one of en"):
        ModelNames(SERVED, {"*": "rome"}).check_aliases()


def test_names_that_are_known() -> None:
    found = {name: names().known(name) for name in ("iberia", "nova-3", "nova-3-es", "whisper-1")}
    assert found == {"iberia": "Iberia", "nova-3": "en", "nova-3-es": "Iberia", "whisper-1": None}


def test_language_tags_and_their_names() -> None:
    assert [is_language(tag) for tag in ("en", "zh-CN", "zh-Hant-TW", "yue")] == [True] * 4
    assert [is_language(name) for name in ("small", "big", "en-large", "e", "tutti")] == [False] * 5
    assert [language_name(tag) for tag in ("en", "es-419", "pt_BR", "tlh")] == [
        "english",
        "spanish",
        "portuguese",
        "tlh",
    ]


def test_english_is_known_only_if_every_tag_is_english() -> None:
    assert is_english(("en", "en-GB"))
    assert not is_english(("en", "de"))
    assert not is_english(())

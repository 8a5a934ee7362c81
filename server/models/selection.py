"""Choice of a served model by the name and the language that a client asks for. Pure.

Languages are BCP 47 tags, looked up as RFC 4647 (3.4) does: `en-US` finds a model of `en`, and `en` one of `en-US`; or
English names, as OpenAI's answers have them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from model.config import FORMER_NAMES, MACRO_LANGUAGES
from model.prompts import AUTO, MULTI
from server.errors import BadParameter, FluxModel, SettingsError

ANY = "*"  # an alias for every name that is not known
DEFAULT = "default"
SHOWN = 64  # characters of a client's own text that a refusal repeats

# English names of languages, by the first part of their tags. Source: the tokenizer of OpenAI's whisper.
# fmt: off
LANGUAGES = {
    "af": "afrikaans", "am": "amharic", "ar": "arabic", "as": "assamese", "az": "azerbaijani", "ba": "bashkir",
    "be": "belarusian", "bg": "bulgarian", "bn": "bengali", "bo": "tibetan", "br": "breton", "bs": "bosnian",
    "ca": "catalan", "cs": "czech", "cy": "welsh", "da": "danish", "de": "german", "el": "greek", "en": "english",
    "es": "spanish", "et": "estonian", "eu": "basque", "fa": "persian", "fi": "finnish", "fo": "faroese",
    "fr": "french", "gl": "galician", "gu": "gujarati", "ha": "hausa", "haw": "hawaiian", "he": "hebrew",
    "hi": "hindi", "hr": "croatian", "ht": "haitian creole", "hu": "hungarian", "hy": "armenian", "id": "indonesian",
    "is": "icelandic", "it": "italian", "ja": "japanese", "jw": "javanese", "ka": "georgian", "kk": "kazakh",
    "km": "khmer", "kn": "kannada", "ko": "korean", "la": "latin", "lb": "luxembourgish", "ln": "lingala", "lo": "lao",
    "lt": "lithuanian", "lv": "latvian", "mg": "malagasy", "mi": "maori", "mk": "macedonian", "ml": "malayalam",
    "mn": "mongolian", "mr": "marathi", "ms": "malay", "mt": "maltese", "my": "myanmar", "ne": "nepali", "nl": "dutch",
    "nn": "nynorsk", "no": "norwegian", "oc": "occitan", "pa": "punjabi", "pl": "polish", "ps": "pashto",
    "pt": "portuguese", "ro": "romanian", "ru": "russian", "sa": "sanskrit", "sd": "sindhi", "si": "sinhala",
    "sk": "slovak", "sl": "slovenian", "sn": "shona", "so": "somali", "sq": "albanian", "sr": "serbian",
    "su": "sundanese", "sv": "swedish", "sw": "swahili", "ta": "tamil", "te": "telugu", "tg": "tajik", "th": "thai",
    "tk": "turkmen", "tl": "tagalog", "tr": "turkish", "tt": "tatar", "uk": "ukrainian", "ur": "urdu", "uz": "uzbek",
    "vi": "vietnamese", "yi": "yiddish", "yo": "yoruba", "yue": "cantonese", "zh": "chinese",
}
# fmt: on
_TAGS = {name: tag for tag, name in LANGUAGES.items()}
OTHER_KINDS = {
    "flux": "a model of /v2/listen, where streams have turns; connect there",
    "aura": "a voice of speech synthesis, which recognizes nothing",
}
"""By the beginning of a model's name, why it does not transcribe: the default would answer another protocol."""
_LANGUAGE = re.compile(r"[A-Za-z]{1,8}([-_][A-Za-z0-9]{1,8})*")  # the form of a tag. Source: RFC 5646, 2.1
_TAG = re.compile(r"([A-Za-z]{2,3})(-[A-Za-z]{4})?(-[A-Za-z]{2}|-[0-9]{3})?")  # language, script, region
_UNKNOWN = 0.5  # closeness of a model whose languages are not known: less than any match


def is_language(name: str) -> bool:
    """Whether a name is a language tag, such as `en` or `zh-CN`, of a language that has a name here."""
    tag = _TAG.fullmatch(name)
    return tag is not None and tag[1].lower() in LANGUAGES


def is_english(languages: Sequence[str]) -> bool:
    """Whether these tags are known, and all of them of English."""
    return bool(languages) and all(_parts(tag)[0] == "en" for tag in languages)


def language_name(tag: str) -> str:
    """English name of a tag's language in lower case, as OpenAI's answers have it; the tag itself if it has none."""
    return LANGUAGES.get(_parts(tag)[0], tag)


def tag_of(language: str) -> str:
    """Return the tag of a language that may be given by its English name."""
    return _TAGS.get(language.casefold(), language)


class ModelNames:
    """Names and languages of the served models. The first is the default; no languages: not known, any is taken."""

    def __init__(self, served: Mapping[str, tuple[str, ...]], aliases: Mapping[str, str]) -> None:
        """`aliases` point to served names, or to `DEFAULT`. Unknown names need the alias `ANY`.

        A served model also has the name that it shipped under before, unless that is an alias.
        """
        self._served = dict(served)
        self._by_name = {name.casefold(): name for name in served}
        former = ((old, new) for old, new in FORMER_NAMES.items() if new in served and old not in aliases)
        self._by_name = dict(former) | self._by_name
        self._aliases = aliases

    @property
    def default(self) -> str:
        """The model of a request that names neither a model nor a language."""
        return next(iter(self._served))

    def check_aliases(self) -> None:
        """Check that each alias points to a model. Raises: SettingsError."""
        for name, target in self._aliases.items():
            if target != DEFAULT and target.casefold() not in self._by_name:
                raise SettingsError(f"model_aliases: {name}: {target!r} is not {DEFAULT!r} nor one of {self._shown()}")

    def known(self, name: str) -> str | None:
        """Return the served model that a name or an alias stands for; None for other names."""
        served = self._by_name.get(name.casefold())
        if served is not None:
            return served
        return self._aliased(name) if name in self._aliases else None

    def choose(self, model: str | None, language: str | None) -> str:
        """Return the served model for a request. Raises: BadParameter.

        A served name decides, and has to have the language. Without one the language does, with an alias's model, then
        the default, first among equals.
        """
        named = None if model is None else self._by_name.get(model.casefold())
        if model is not None and named is None and model not in self._aliases:
            self._check_unknown(model)
        if language and not (_LANGUAGE.fullmatch(language) or language.casefold() in _TAGS):
            raise BadParameter(f"language: {language[:SHOWN]!r} is not a language tag such as en or es-419")
        preferred = named or self._aliased(model)
        if not language or language.casefold() in (AUTO, MULTI):
            return preferred
        if named is not None:
            if not _closeness(language, self._served[named]):
                has = ", ".join(self._served[named])
                raise BadParameter(f"language: the model {named!r} has {has}, not {language[:SHOWN]!r}")
            return named
        closest = max((preferred, *self._served), key=lambda name: _closeness(language, self._served[name]))
        if not _closeness(language, self._served[closest]):
            raise BadParameter(f"language: {language[:SHOWN]!r} is not served here; there is {self._shown()}")
        return closest

    def one_language(self, parameter: str, model: str | None, languages: Sequence[str]) -> str | None:
        """Return the first of languages that may be spoken, all of which one model has; None for none.

        Raises: BadParameter, which names the `parameter`.
        """
        try:
            served = {self.choose(model, language) for language in languages}
        except BadParameter as error:
            raise BadParameter(str(error).replace("language: ", f"{parameter}: ", 1)) from error
        if len(served) > 1:
            names = ", ".join(languages)[:SHOWN]
            raise BadParameter(f"{parameter}: {names!r} need several models ({', '.join(sorted(served))}); name one")
        return next(iter(languages), None)

    def _check_unknown(self, name: str) -> None:
        """Refuse a name that stands for no served model where it must, or is of another kind. Raises: BadParameter."""
        for beginning, why in OTHER_KINDS.items():
            if re.split(r"[^a-z0-9]", name.casefold())[0] == beginning:
                kind = FluxModel if beginning == "flux" else BadParameter
                raise kind(f"model: {name[:SHOWN]!r} is {why}; there is {self._shown()}")
        if ANY not in self._aliases:
            raise BadParameter(f"model: {name[:SHOWN]!r} is not served here; there is {self._shown()}")

    def _aliased(self, name: str | None) -> str:
        """The model that an alias points to, else the default."""
        target = "" if name is None else self._aliases.get(name, self._aliases.get(ANY, ""))
        return self._by_name.get(target.casefold(), self.default)

    def _shown(self) -> str:
        """All models with their languages, for a refusal."""
        return ", ".join(
            f"{name} ({', '.join(languages) or 'any language'})" for name, languages in self._served.items()
        )


def _parts(tag: str) -> list[str]:
    first, *rest = tag_of(tag).replace("_", "-").lower().split("-")
    return [MACRO_LANGUAGES.get(first, first), *rest]


def _closeness(asked: str, languages: tuple[str, ...]) -> float:
    """How well languages fit the one asked for: 0 not at all; the more parts of the tags agree, the more."""
    if not languages:
        return _UNKNOWN
    return max(_agreement(_parts(asked), _parts(language)) for language in languages)


def _agreement(asked: list[str], offered: list[str]) -> float:
    """Leading parts that two tags share, 0 where the language itself differs; more if they are the same tag."""
    same = 0
    for one, other in zip(asked, offered, strict=False):
        if one != other:
            break
        same += 1
    return same + (0.5 if asked == offered else 0.0)

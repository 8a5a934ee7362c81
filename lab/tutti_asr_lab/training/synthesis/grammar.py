"""Random grammatical sentences from a small phrase-structure grammar over ``vocabulary.txt``.

Knows word classes and agreement. The sentences need not make sense, so that a model cannot rely on likely text.
"""

from random import Random

from tutti_asr_lab.training.synthesis.wordlists import (
    VOCABULARY_FILE,
    Noun,
    Verb,
    parse_noun,
    parse_verb,
    read_sections,
)

_MODALS = ("can", "could", "will", "would", "should", "must", "may", "might", "can't", "won't", "shouldn't", "couldn't")
_PRONOUNS = ("i", "you", "he", "she", "it", "we", "they")
_OBJECTS = ("me", "you", "him", "her", "it", "us", "them", "this", "that", "everything", "nothing", "someone")
_POSSESSIVES = ("my", "your", "his", "her", "its", "our", "their")
_LINKS = ("and", "but", "because", "while", "when", "so", "although", "if", "before", "after", "until")
_QUESTION_WORDS = ("why", "how", "when", "where", "what")
_THIRD_PERSON = frozenset({"he", "she", "it"})
_BE_CONTRACTED = {
    "i": "i'm",
    "you": "you're",
    "he": "he's",
    "she": "she's",
    "it": "it's",
    "we": "we're",
    "they": "they're",
}


class Grammar:
    """Generator of sentences; its only state is the word classes."""

    def __init__(self, words: dict[str, tuple[str, ...]]) -> None:
        """Parse the sections of the vocabulary file."""
        self._things: tuple[Noun, ...] = tuple(map(parse_noun, words["noun"]))
        self._people: tuple[Noun, ...] = tuple(map(parse_noun, words["person"]))
        self._transitive: tuple[Verb, ...] = tuple(map(parse_verb, words["transitive"]))
        self._intransitive: tuple[Verb, ...] = tuple(map(parse_verb, words["intransitive"]))
        self._mass = words["mass"]
        self._adjectives = words["adjective"]
        self._manner = words["manner"]
        self._when = words["when"]
        self._prepositions = words["preposition"]
        self._names = words["name"]

    def sentence(self, rng: Random) -> str:
        """Draw a sentence of any length; the caller filters by length."""
        shapes = (self._statement, self._statement, self._statement, self._copula, self._question, self._imperative)
        text = rng.choice((*shapes, self._there_is, self._compound))(rng)
        if rng.random() < 0.15:
            text = f"{text} {rng.choice(self._when)}"
        return text

    def _statement(self, rng: Random) -> str:
        subject, plural = self._subject(rng)
        verb_phrase = self._finite_verb_phrase(rng, plural)
        return f"{subject} {verb_phrase}"

    def _compound(self, rng: Random) -> str:
        pronoun = rng.choice(_PRONOUNS)
        second = self._finite_verb_phrase(rng, pronoun not in _THIRD_PERSON)
        return f"{self._statement(rng)} {rng.choice(_LINKS)} {pronoun} {second}"

    def _copula(self, rng: Random) -> str:
        subject, plural = self._subject(rng)
        be = rng.choice(("is", "was")) if not plural else rng.choice(("are", "were"))
        if subject == "i":
            be = rng.choice(("am", "was"))
        predicate = rng.choice((self._adjective_phrase, self._prepositional, self._progressive))(rng)
        if subject in _BE_CONTRACTED and rng.random() < 0.4:
            return f"{_BE_CONTRACTED[subject]} {predicate}"
        return f"{subject} {be} {'not ' if rng.random() < 0.15 else ''}{predicate}"

    def _question(self, rng: Random) -> str:
        subject, plural = self._subject(rng)
        do = rng.choice(("did", "do" if plural else "does", "can", "will", "should"))
        lead = f"{rng.choice(_QUESTION_WORDS)} " if rng.random() < 0.5 else ""
        return f"{lead}{do} {subject} {self._verb_with_object(rng, 'base')}"

    def _imperative(self, rng: Random) -> str:
        lead = rng.choice(("", "", "please ", "don't ", "let's ", "never "))
        return f"{lead}{self._verb_with_object(rng, 'base')}"

    def _there_is(self, rng: Random) -> str:
        noun = rng.choice(self._things)
        if rng.random() < 0.5:
            phrase = _with_article(f"{self._maybe_adjective(rng)}{noun.singular}")
            return f"{rng.choice(('there is', 'there was'))} {phrase} {self._prepositional(rng)}"
        count = rng.choice(("two", "three", "four", "five", "many", "some", "no", "several", "few"))
        lead = rng.choice(("there are", "there were"))
        return f"{lead} {count} {self._maybe_adjective(rng)}{noun.plural} {self._prepositional(rng)}"

    def _subject(self, rng: Random) -> tuple[str, bool]:
        """Draw a subject; return it and whether its verb is in the plural form ("i" and "you" count as plural)."""
        kind = rng.random()
        if kind < 0.3:
            pronoun = rng.choice(_PRONOUNS)
            return pronoun, pronoun not in _THIRD_PERSON
        if kind < 0.45:
            return rng.choice(self._names), False
        return self._noun_phrase(rng, self._people if kind < 0.7 else self._things)

    def _noun_phrase(self, rng: Random, nouns: tuple[Noun, ...]) -> tuple[str, bool]:
        """Draw a noun phrase; return it and whether it is plural."""
        noun, adjective = rng.choice(nouns), self._maybe_adjective(rng)
        kind = rng.random()
        if kind < 0.3:
            return _with_article(f"{adjective}{noun.singular}"), False
        if kind < 0.6:
            determiner = rng.choice(("the", "the", "this", "that", "every", rng.choice(_POSSESSIVES)))
            return f"{determiner} {adjective}{noun.singular}", False
        if kind < 0.68:
            return f"{rng.choice(self._names)}'s {adjective}{noun.singular}", False
        if kind < 0.78:
            return f"{rng.choice(('the', 'some', 'more', 'much', 'their'))} {adjective}{rng.choice(self._mass)}", False
        determiner = rng.choice(("the", "these", "those", "some", "all", "two", "three", rng.choice(_POSSESSIVES)))
        return f"{determiner} {adjective}{noun.plural}", True

    def _maybe_adjective(self, rng: Random) -> str:
        return f"{rng.choice(self._adjectives)} " if rng.random() < 0.45 else ""

    def _adjective_phrase(self, rng: Random) -> str:
        lead = rng.choice(("", "", "very ", "too ", "quite ", "so ", "really "))
        return f"{lead}{rng.choice(self._adjectives)}"

    def _prepositional(self, rng: Random) -> str:
        nouns = self._things if rng.random() < 0.8 else self._people
        return f"{rng.choice(self._prepositions)} {self._noun_phrase(rng, nouns)[0]}"

    def _progressive(self, rng: Random) -> str:
        return self._verb_with_object(rng, "gerund")

    def _finite_verb_phrase(self, rng: Random, plural: bool) -> str:
        kind = rng.random()
        if kind < 0.4:
            return self._verb_with_object(rng, "past")
        if kind < 0.6:
            return self._verb_with_object(rng, "base" if plural else "third")
        if kind < 0.75:
            return f"{'have' if plural else 'has'} {self._verb_with_object(rng, 'participle')}"
        if kind < 0.85:
            do = rng.choice(("didn't", "don't" if plural else "doesn't"))
            return f"{do} {self._verb_with_object(rng, 'base')}"
        return f"{rng.choice(_MODALS)} {self._verb_with_object(rng, 'base')}"

    def _verb_with_object(self, rng: Random, form: str) -> str:
        if rng.random() < 0.3:
            words = [getattr(rng.choice(self._intransitive), form)]
        else:
            kind = rng.random()
            nouns = self._things if kind < 0.8 else self._people
            target = rng.choice(_OBJECTS) if kind < 0.15 else self._noun_phrase(rng, nouns)[0]
            words = [getattr(rng.choice(self._transitive), form), target]
        if rng.random() < 0.25:
            words.append(self._prepositional(rng))
        if rng.random() < 0.2:
            words.append(rng.choice(self._manner))
        return " ".join(words)


def load_grammar() -> Grammar:
    """Load the grammar with the shipped vocabulary."""
    return Grammar(read_sections(VOCABULARY_FILE, r"\s+"))


def _with_article(phrase: str) -> str:
    return f"{'an' if phrase[0] in 'aeiou' and not phrase.startswith(('uni', 'use', 'one', 'eu')) else 'a'} {phrase}"

"""Second pronunciations of frequent English words: how they are said without stress, written by hand.

espeak-ng gives each word as it is said alone; in a sentence the words of grammar are reduced. Phones are those of
`model.lexicon.espeak`. Source: own list after the weak forms that textbooks of English phonetics give
(Cruttenden 2014, "Gimson's Pronunciation of English"), less those that consist of a single common sound; and what
Americans say for "zero".
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_TEXT = """
a: eɪ
am: ə m
an: ə n
and: ə n d | ə n
are: ɚ
as: ə z
at: ə t
because: b ɪ k ə z | b ɪ k ʌ z | k ʌ z
been: b ɛ n
but: b ə t
can: k ə n | k ɪ n
could: k ə d
do: d ə
does: d ə z
for: f ɚ
from: f ɹ ə m
had: h ə d | ə d
has: h ə z | ə z
have: h ə v | ə v
he: i
her: ɚ
him: ɪ m
his: ɪ z
i'll: ɑ l | ə l
i'm: ɑ m | ə m
into: ɪ n t ə
it's: ɪ s
just: dʒ ə s t | dʒ ɪ s t | dʒ ə s
must: m ə s t | m ə s
nor: n ɚ
not: n ə t
of: ə v
or: ɚ
our: ɑ ɹ | aʊ ɹ
shall: ʃ ə l
she: ʃ ɪ
should: ʃ ə d
some: s ə m
such: s ə tʃ
than: ð ə n
that: ð ə t
that's: ð ə t s
the: ð i
their: ð ɚ
them: ð ə m | ə m
there: ð ɚ
there's: ð ɚ z
they: ð ɪ
they're: ð ɚ
to: t ə | t ʊ | ɾ ə
upon: ə p ɑ n
us: ə s
was: w ə z | w ɑ z
we: w ɪ
we're: w ɚ | w ɪ ɹ
what: w ʌ t | w ə t
who: u
will: w ə l | ə l
with: w ɪ θ | w ə ð
would: w ə d | ə d
you: j ə | j ʊ
you're: j ɚ | j ɔ ɹ
your: j ɚ | j ɔ ɹ
zero: z ɪ ɹ oʊ | z i ɹ oʊ
"""

Phones = tuple[str, ...]


def weak_forms() -> Mapping[str, tuple[Phones, ...]]:
    """Further pronunciations of each word of the table."""
    rows = (line.partition(": ") for line in _TEXT.strip().splitlines())
    return MappingProxyType({word: tuple(tuple(one.split()) for one in said.split(" | ")) for word, _, said in rows})

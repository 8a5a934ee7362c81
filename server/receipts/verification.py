"""Checks of recorded receipts: signatures, order, words against digests, audio, and a replay's results. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from model.ctc.words import joined
from server.receipts.keys import BadSignature, ReceiptKeys
from server.receipts.receipt import Digests, FinalText, ShownWord, message_digest, text_digest
from server.receipts.recorded import BadReceipt, Entry, Recorded, unsigned_claims
from server.recognition.audio_digest import BLOCK, SAMPLE_BYTES, digest_of


class Part(StrEnum):
    """What can differ."""

    SIGNATURE = "signature"
    ORDER = "order of finals"
    END = "end of the stream"
    MESSAGE = "message"
    UNSIGNED = "not signed"
    AUDIO = "audio"
    MODEL = "model"
    DECODER = "decoder"
    LANGUAGE_MODEL = "language model"
    KEYTERM = "key terms"
    SETTING = "settings"
    WORD = "words"


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs, and where."""

    part: Part
    detail: str

    def __str__(self) -> str:
        """Return it as one line."""
        return f"{self.part}: {self.detail}"


def check_recorded(recorded: Recorded, keys: ReceiptKeys | None, *, may_lack_end: bool = False) -> list[Difference]:
    """Check the receipts against each other and what is recorded with them; without keys no signatures.

    `may_lack_end`: the receipt that closes the stream may be missing, as after a lost connection.
    """
    differences = [] if keys is None else list(_signatures(recorded.entries, keys))
    differences += _order(recorded.entries)
    if recorded.closed is None and not may_lack_end:
        number = recorded.entries[-1].receipt.number
        detail = f"no receipt closes the stream, so finals that followed receipt {number} may be missing (--lost)"
        differences.append(Difference(Part.END, detail))
    for entry in recorded.entries:
        differences += _message(entry)
    differences += [Difference(Part.UNSIGNED, claim) for claim in unsigned_claims(recorded)]
    first = recorded.first.digests
    for entry in recorded.entries:
        if entry.receipt.digests != first:
            where = f"in receipt {entry.receipt.number}", "in the first one"
            differences += compare_digests(first, entry.receipt.digests, *where)
            break
    return differences


def _signatures(entries: Sequence[Entry], keys: ReceiptKeys) -> Iterator[Difference]:
    for entry in entries:
        try:
            keys.verify(entry.signed)
        except BadSignature as error:
            yield Difference(Part.SIGNATURE, f"receipt {entry.receipt.number} is {error}")


def _order(entries: Sequence[Entry]) -> Iterator[Difference]:
    """Return the first receipt that does not follow the one before it."""
    previous, expected = "", 0
    for entry in entries:
        receipt = entry.receipt
        if receipt.number != expected:
            yield Difference(Part.ORDER, f"receipt {receipt.number} stands where {expected} is expected")
            return
        if receipt.previous != previous or receipt.stream != entries[0].receipt.stream:
            yield Difference(Part.ORDER, f"receipt {receipt.number} does not follow the one before it")
            return
        if isinstance(receipt.closed, str) and entry is not entries[-1]:
            yield Difference(Part.ORDER, f"receipt {receipt.number} closes the stream, and others follow it")
            return
        previous, expected = entry.digest, expected + 1


def _message(entry: Entry) -> Iterator[Difference]:
    """Compare a message with the digests in its receipt; words and times are named before other fields."""
    final, message, number = entry.receipt.final, entry.message, entry.receipt.number
    if message_digest(message) == entry.receipt.message:
        return
    if isinstance(final, FinalText) and not _has_words(entry, final.sha256):
        yield Difference(Part.WORD, f"the message of receipt {number} has other words than were signed")
    elif isinstance(final, FinalText) and (message.get("start"), message.get("duration")) != (
        final.start,
        final.duration,
    ):
        yield Difference(Part.WORD, f"the message of receipt {number} has another time than was signed")
    else:
        yield Difference(Part.MESSAGE, f"the message of receipt {number} has other fields or values than were signed")


def _has_words(entry: Entry, digest: str) -> bool:
    """Whether a message has the words of a digest, and a transcript that joins them."""
    try:
        return text_digest(entry.words) == digest and joined([shown for *_, shown in entry.words]) == entry.transcript
    except (BadReceipt, ValueError, OverflowError):  # no words, or times that are no numbers
        return False


NAMES = {
    "model": Part.MODEL,
    "decoder": Part.DECODER,
    "language_model": Part.LANGUAGE_MODEL,
    "keyterms": Part.KEYTERM,
    "settings": Part.SETTING,
}


def compare_digests(
    receipt: Digests, found: Digests, left: str = "here", right: str = "in the receipt"
) -> list[Difference]:
    """Compare what a text depends on. A decoder's digest follows from its language model's, which is named alone."""
    differing = [name for name in NAMES if getattr(receipt, name) != getattr(found, name)]
    if "language_model" in differing and "decoder" in differing:
        differing.remove("decoder")
    return [
        Difference(
            NAMES[name],
            f"{getattr(found, name)[:16] or 'none'} {left}, {getattr(receipt, name)[:16] or 'none'} {right}",
        )
        for name in differing
    ]


def check_audio(recorded: Recorded, audio: bytes, channels: int, rate: int) -> list[Difference]:
    """Compare interleaved 16-bit samples with the receipts' digests; return the first difference."""
    size, total = SAMPLE_BYTES * channels, len(audio) // (SAMPLE_BYTES * channels)
    end = max(entry.receipt.audio.end for entry in recorded.entries)
    if total < end or (recorded.closed is not None and total > end):
        return [Difference(Part.AUDIO, f"the recording has {total} samples, the receipts {end}")]
    begin, good, chain, hashed = recorded.first.audio.begin, recorded.first.audio.begin, b"", 0
    for entry in sorted(recorded.entries, key=lambda entry: entry.receipt.audio.end):
        covered = entry.receipt.audio
        blocks = max(0, covered.end - begin - hashed) // BLOCK * BLOCK
        if blocks:
            start = begin + hashed
            chain = digest_of(audio[start * size : (start + blocks) * size], channels, chain)
            hashed += blocks
        digest = digest_of(audio[(begin + hashed) * size : covered.end * size], channels, chain)
        if covered.begin != begin or digest.hex() != covered.sha256:
            seconds = f"{good / rate:.3f} to {covered.end / rate:.3f} s"
            return [Difference(Part.AUDIO, f"differs between the samples {good} and {covered.end} ({seconds})")]
        good = covered.end
    return []


def compare_finals(recorded: Recorded, replayed: Recorded) -> list[Difference]:
    """Compare the finals of receipts with those of a replay; return the first difference."""
    theirs, ours = _by_channel(recorded.finals), _by_channel(replayed.finals)
    if recorded.closed is None:  # the stream was lost: the replay has finals for the audio that followed
        finals = Counter(_place(entry)[0] for entry in theirs)
        by_channel = [([one for one in ours if _place(one)[0] == at], count) for at, count in finals.items()]
        ours = [entry for entries, count in by_channel for entry in entries[:count]]
    for at, entry in enumerate(theirs):
        if at >= len(ours):
            return [Difference(Part.WORD, f"receipt {entry.receipt.number} has a final that the replay has not")]
        difference = _final(entry, ours[at])
        if difference is not None:
            return [difference]
    if len(ours) > len(theirs):
        return [Difference(Part.WORD, "the replay has a final after the last one of the receipts")]
    return []


def _by_channel(finals: Sequence[Entry]) -> list[Entry]:
    """Return finals channel by channel: their order among channels depends on the load."""
    return sorted(finals, key=_place)


def _place(entry: Entry) -> tuple[int, int]:
    final = entry.receipt.final
    assert isinstance(final, FinalText), "an entry of a final"
    return final.channel, entry.receipt.number


def _final(theirs: Entry, ours: Entry) -> Difference | None:
    left, right, number = theirs.receipt.final, ours.receipt.final, theirs.receipt.number
    assert isinstance(left, FinalText), "an entry of a final"
    assert isinstance(right, FinalText), "an entry of a final"
    if left == right:
        return None
    if left.sha256 != right.sha256:
        return Difference(Part.WORD, f"receipt {number}: {_first_word(theirs.words, ours.words)}")
    values = zip(*(msgspec.structs.asdict(final).items() for final in (left, right)), strict=True)
    texts = [f"{name} {value}, {other} in the replay" for (name, value), (_, other) in values if value != other]
    return Difference(Part.WORD, f"receipt {number}: {'; '.join(texts)}")


def _first_word(theirs: Sequence[ShownWord], ours: Sequence[ShownWord]) -> str:
    for at, (left, right) in enumerate(zip(theirs, ours, strict=False)):
        if left != right:
            return f"word {at + 1} is {_shown(left)}, {_shown(right)} in the replay"
    return f"{len(theirs)} words, {len(ours)} in the replay"


def _shown(word: ShownWord) -> str:
    start, end, confidence, _, shown = word
    return f"{shown!r} at {start:.3f} to {end:.3f} s ({confidence:.4f})"

"""Results in another time line, or without what has been told. Pure functions of messages."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from tutti_asr_client.messages import Alternative, Results, SpeechStarted, UtteranceEnd, Word

Timed = TypeVar("Timed", bound=Results | SpeechStarted | UtteranceEnd)


def later(message: Timed, seconds: float) -> Timed:
    """The message as a stream says it that began so many seconds earlier."""
    if not seconds:
        return message
    change = msgspec.structs.replace
    if isinstance(message, SpeechStarted):
        return change(message, timestamp=message.timestamp + seconds)
    if isinstance(message, UtteranceEnd):
        return change(message, last_word_end=message.last_word_end + seconds)
    readings = tuple(_later(reading, seconds) for reading in message.channel.alternatives)
    timings = message.tutti
    if timings is not None:
        timings = change(timings, audio_processed_s=timings.audio_processed_s + seconds)
    channel = change(message.channel, alternatives=readings)
    return change(message, start=message.start + seconds, channel=channel, tutti=timings)


def _later(reading: Alternative, seconds: float) -> Alternative:
    change = msgspec.structs.replace
    words = tuple(change(word, start=word.start + seconds, end=word.end + seconds) for word in reading.words)
    return change(reading, words=words)


def without_words_before(results: Results, seconds: float) -> Results:
    """The rest of a result from a moment on: a word belongs to the side that its middle lies on."""
    change = msgspec.structs.replace
    readings = []
    for reading in results.channel.alternatives:
        words = tuple(word for word in reading.words if (word.start + word.end) / 2 > seconds)
        readings.append(change(reading, words=words, transcript=" ".join(_shown(word) for word in words)))
    channel = change(results.channel, alternatives=tuple(readings))
    return change(results, start=seconds, duration=results.cursor_s - seconds, channel=channel)


def _shown(word: Word) -> str:
    return word.word if word.punctuated_word is msgspec.UNSET else word.punctuated_word

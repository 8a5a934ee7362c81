"""Each channel of a recording is decoded to its own samples, for every codec and number of channels, or refused."""

from __future__ import annotations

from functools import cache
from typing import Any

import av
import numpy as np
import pytest

from server.audio import ffmpeg_codec
from server.audio.decoder import open_decoder
from server.audio.ffmpeg_codec import FrameReader
from server.audio.formats import audio_form
from server.audio.pcm import MAX_CHANNELS, PCM
from server.errors import BadAudio, NotTaken
from tests.support.audio.media_files import container, decoded, sound_file, speech, uploaded

RATE = 48_000
KINDS = {  # container and codec, and the numbers of channels that FFmpeg's encoder keeps in order
    ("adts", "aac"): (1, 2, 6, 7, 8),
    ("ipod", "aac"): (1, 2, 6, 7, 8),
    ("matroska", "aac"): (6, 8),
    ("matroska", "flac"): (6, 8),
    ("ogg", "flac"): (2, 7, 8),
    ("ogg", "libopus"): (1, 2, 6, 8),
    ("matroska", "libopus"): (2, 6, 8),
    ("ipod", "alac"): (1, 2, 6),
    ("wav", "pcm_s16le"): (1, 2, 6, 7, 8),
    ("matroska", "pcm_s16le"): (2, 8),
    ("mov", "pcm_s16be"): (2, 6, 8),
}
CASES = [(*kind, channels) for kind, numbers in KINDS.items() for channels in numbers]
IN_PROGRAM_CONFIG = ("adts", "aac", 7)  # its ADTS header has no number of channels: refused as announced wrongly
LIVE = [case for case in CASES if case[0] in ("adts", "matroska", "ogg", "wav") and case != IN_PROGRAM_CONFIG]
VORBIS_PLACES = {  # of each channel in FFmpeg's order. Source: Vorbis I specification, section 4.3.9
    2: [0, 1],
    6: [0, 2, 1, 5, 3, 4],
    7: [0, 2, 1, 6, 5, 3, 4],
    8: [0, 2, 1, 7, 5, 6, 3, 4],
}


@cache
def sounds(channels: int) -> PCM:
    """Speech, shifted and scaled differently in each channel, (S, C)."""
    mono = speech(RATE)[: RATE // 2, 0].astype(np.float64)
    shifted = [np.roll(mono, 1_900 * i) * (1 - i / 20) for i in range(channels)]
    return np.stack(shifted, axis=1).astype(np.int16)


@cache
def recorded(kind: str, codec: str, channels: int) -> bytes:
    return container(kind, codec, sounds(channels), RATE, bit_rate=128_000 * channels)


@cache
def vorbis(channels: int) -> bytes:
    return sound_file("OGG", "VORBIS", sounds(channels), RATE)


def samples_of(body: bytes) -> PCM:
    return uploaded(body, rate=RATE)[0]


def live(body: bytes, channels: int) -> PCM:
    return decoded(open_decoder(audio_form(None, None, channels), RATE, multichannel=True), [body])


def places(samples: PCM) -> list[int]:
    """Return, for each decoded channel, the channel of `sounds` that it is most like within a codec's delay."""
    size = 2 * len(samples)
    ours = np.fft.rfft(samples.astype(np.float64), size, axis=0)  # (F, C)
    original = np.fft.rfft(sounds(samples.shape[1]).astype(np.float64), size, axis=0)  # (F, C)
    scores = np.fft.irfft(ours[:, :, None] * original.conj()[:, None, :], size, axis=0)  # (shift, C, C)
    near = np.concatenate([scores[-16:], scores[:1_100]]).max(axis=0)  # (C, C)
    level = np.linalg.norm(sounds(samples.shape[1]).astype(np.float64), axis=0)
    return [int(place) for place in np.argmax(near / level, axis=1)]


@pytest.mark.parametrize(("kind", "codec", "channels"), CASES)
def test_every_channel_of_an_upload_is_in_its_place(kind: str, codec: str, channels: int) -> None:
    assert places(samples_of(recorded(kind, codec, channels))) == list(range(channels))


@pytest.mark.parametrize(("kind", "codec", "channels"), LIVE)
def test_every_channel_of_a_live_container_is_in_its_place(kind: str, codec: str, channels: int) -> None:
    assert places(live(recorded(kind, codec, channels), channels)) == list(range(channels))


@pytest.mark.parametrize("channels", VORBIS_PLACES)
def test_every_channel_of_vorbis_is_in_the_place_of_its_speaker(channels: int) -> None:
    assert places(samples_of(vorbis(channels))) == VORBIS_PLACES[channels]
    assert places(live(vorbis(channels), channels)) == VORBIS_PLACES[channels]


@pytest.mark.parametrize("channels", [MAX_CHANNELS + 1, 12, 25, 255])
def test_more_channels_are_refused_by_number(channels: int) -> None:
    """The header of mono Vorbis with another number of channels decodes to frames of that many planes."""
    changed = bytearray(vorbis(1))
    changed[changed.index(b"\x01vorbis") + 11] = channels
    for body in (bytes(changed), vorbis(channels)):
        with pytest.raises(BadAudio, match=f"{channels} channels"):
            samples_of(body)
        with pytest.raises(NotTaken, match=f"{channels} channels"):
            decoded(open_decoder(audio_form(None, None), RATE), [body])


@pytest.mark.parametrize("form", ["u8", "s16", "s32", "flt", "dbl"])
@pytest.mark.parametrize("channels", [*range(1, MAX_CHANNELS + 1), 12])
@pytest.mark.parametrize("planar", ["", "p"])
def test_a_frame_of_any_format_is_converted_or_refused(form: str, channels: int, planar: str) -> None:
    layout = av.AudioLayout("7.1.4" if channels == 12 else f"{channels}c")
    pcm = np.tile(np.arange(-4, 4, dtype=np.int16)[:, None] << 12, channels)  # (8, C)
    pcm += (np.arange(channels, dtype=np.int16) << 8)[None, :]
    packed = av.AudioFrame.from_ndarray(pcm.reshape(1, -1), "s16", layout)
    packed.sample_rate = RATE
    (frame,) = av.AudioResampler(form + planar, layout, RATE).resample(packed)
    if channels > MAX_CHANNELS:
        with pytest.raises(NotTaken, match=f"{channels} channels"):
            FrameReader().samples(frame)
    else:
        assert np.array_equal(FrameReader().samples(frame), pcm)


@pytest.mark.parametrize("form", ["s64", "s64p"])
def test_a_frame_of_64_bit_integers_is_refused_by_name(form: str) -> None:
    with pytest.raises(NotTaken, match=form):
        FrameReader().samples(av.AudioFrame(form, "mono", 100))


@pytest.mark.parametrize(
    "layout", ["8 channels", "octagonal", "FL+FR+FC+LFE+BL+BR+TFL+TFR", "AMBI0+FL+FR+FC+BL+BR+SL+SR"]
)
def test_eight_planes_of_any_layout_keep_their_order(layout: str) -> None:
    pcm = np.arange(800, dtype=np.int16).reshape(-1, 8)
    packed = av.AudioFrame.from_ndarray(pcm.reshape(1, -1), "s16", layout)
    packed.sample_rate = RATE
    (frame,) = av.AudioResampler("fltp", layout, RATE).resample(packed)
    assert np.array_equal(FrameReader().samples(frame), pcm)


def test_the_frames_of_a_stream_of_eight_planes_share_a_resampler(monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts threads: one for each frame took minutes on a busy machine."""
    made: list[tuple[Any, ...]] = []

    def make(*arguments: Any, **options: Any) -> Any:
        made.append(arguments)
        return av.AudioResampler(*arguments, **options)

    monkeypatch.setattr(ffmpeg_codec, "AudioResampler", make)
    body = container("adts", "aac", speech(48_000, 8), 48_000)
    assert len(samples_of(body)) >= len(speech(48_000))
    assert len(made) == 1

"""Creates the decoder of a live stream: `LiveDecoder` for all encodings. Sans I/O.

How the bytes are split into messages does not change the samples, except for raw Opus, where a message is a packet.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from server.audio.containers.live import ContainerDecoder, Resampled
from server.audio.containers.ogg import MAGIC as OGG_MAGIC
from server.audio.ffmpeg_codec import Codec
from server.audio.formats import OPUS_RATE, PLAIN, AudioForm, Encoding, Losses
from server.audio.packets import MAX_PACKET_BYTES, PacketCodec, Track
from server.audio.pcm import PCM
from server.audio.raw import PLAIN_CODECS, PlainReader
from server.audio.sniffing import container_of
from server.errors import NotTaken, Undecodable


def open_decoder(
    form: AudioForm, model_rate: int, *, multichannel: bool = False, raw_alone: bool = False
) -> LiveDecoder:
    """Return the decoder of one live stream; `raw_alone` rejects a container if a raw encoding was announced."""
    if form.encoding in PLAIN:
        assert form.sample_rate is not None, "checked by audio_form"
        reader = PlainReader(PLAIN_CODECS[form.encoding], form.sample_rate, form.channels)
        return SniffingDecoder(reader, form, multichannel=multichannel, raw_alone=raw_alone)
    if form.encoding is Encoding.OPUS:
        opus = OpusDecoder(form.channels)
        return SniffingDecoder(opus, form, multichannel=multichannel, raw_alone=raw_alone)
    rate, channels = form.decoded_rate(model_rate), form.decoded_channels(multichannel=multichannel)
    # The container is detected from the bytes; the announced one is ignored.
    return ContainerDecoder(Resampled(rate, channels, mixed=not multichannel))


class SniffingDecoder:
    """Decoder of a stream announced as raw audio, which may turn out to be a container.

    The first twelve bytes decide, or up to 25 kB if they look like a frame of MP3 or AAC.
    """

    def __init__(self, raw: PlainReader | OpusDecoder, form: AudioForm, *, multichannel: bool, raw_alone: bool) -> None:
        self.rate, self.channels, self.inline = raw.rate, raw.channels, raw.inline
        self._decoder: PlainReader | OpusDecoder | ContainerDecoder = raw
        self._form = form
        self._multichannel = multichannel
        self._raw_alone = raw_alone
        self._decided = False
        self._widens = False  # the container is mixed to one channel, which is copied to the expected number
        self._held: list[bytes] = []  # messages received before the decision

    @property
    def undecided(self) -> bool:
        """True while it buffers messages until this is decided."""
        return bool(self._held) and not self._decided

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes per second of audio as sent; None until the header is read."""
        return self._decoder.bytes_per_s

    @property
    def losses(self) -> Losses:
        """Losses repaired so far."""
        return self._decoder.losses

    @property
    def warnings(self) -> list[str]:
        """Repaired losses, and at the end what is missing or skipped, as `kind: sentence`."""
        return self._decoder.warnings

    @property
    def holds(self) -> bool:
        """True while the bytes so far hold more audio than the last limit; `feed` of b"" returns more of it."""
        return self._decided and not self._held and self._decoder.holds

    def sniff(self, chunk: bytes) -> LiveDecoder:
        """Inspect the next message before it is fed; return its decoder, the found one once that is due alone.

        Raises: NotTaken.
        """
        if not self._decided:
            self._decide(b"".join([*self._held, chunk]), whole=False)
        return self._decoder if self._decided and not (self._held or self._widens) else self

    def feed(self, chunk: bytes, limit_s: float) -> PCM:
        """Return the samples that `chunk` completes, (S, C) int16. Raises: MediaError."""
        if self._decided and not self._held:
            return self._as_expected(self._decoder.feed(chunk, limit_s))
        if not self._decided:
            self._decide(b"".join([*self._held, chunk]), whole=False)
        self._held.append(chunk)
        return self._feed_held(limit_s) if self._decided else self._decoder.drain()

    def drain(self, limit_s: float = math.inf) -> PCM:
        """Return samples held back, (S, C) int16; the stream continues. Repeat while `holds`. Raises: MediaError."""
        return self._rest(limit_s, self._decoder.drain)

    def flush(self, limit_s: float = math.inf) -> PCM:
        """Return the last samples, (S, C) int16. Repeat while `holds`. Raises: MediaError."""
        return self._rest(limit_s, self._decoder.flush)

    def _rest(self, limit_s: float, end: Callable[[float], PCM]) -> PCM:
        if self._held and not self._decided:
            self._decide(b"".join(self._held), whole=True)
        if not self._held:
            return self._as_expected(end(limit_s))
        samples = self._feed_held(limit_s / 2)  # the other half is for the end
        if self._decoder.holds:
            return samples
        return np.concatenate([samples, self._as_expected(end(limit_s - len(samples) / self.rate))])

    def _decide(self, head: bytes, *, whole: bool) -> None:
        kind = container_of(head, whole=whole)
        if kind is False:
            return
        self._decided = True
        if kind is None:
            return
        if self._raw_alone:
            raise NotTaken(f"encoding={self._form.encoding.value} was announced, but the audio is a {kind} container")
        mixed = not self._multichannel
        self._widens = mixed and self.channels > 1
        channels = 1 if mixed else self.channels
        self._decoder = ContainerDecoder(Resampled(self.rate, channels, mixed=mixed))
        self.inline = self._decoder.inline

    def _feed_held(self, limit_s: float) -> PCM:
        """Decode the buffered messages; for raw Opus each is one packet."""
        held, self._held = self._held, []
        if isinstance(self._decoder, OpusDecoder):
            return np.concatenate([self._decoder.feed(packet, limit_s) for packet in held])
        return self._as_expected(self._decoder.feed(b"".join(held), limit_s))

    def _as_expected(self, samples: PCM) -> PCM:
        return np.repeat(samples, self.channels, axis=1) if self._widens else samples  # (S, C)


class OpusDecoder:
    """Decoder of raw Opus, one packet (at most 120 ms) per message: 20 ms take about 20 µs, so it needs no thread."""

    inline = True
    holds = False

    def __init__(self, channels: int) -> None:
        """Open FFmpeg's decoder; `open_decoder` has checked that it is installed."""
        track = Track(PacketCodec.OPUS, OPUS_RATE, channels)
        self.rate = track.rate
        self.channels = channels
        self.bytes_per_s = track.bytes_per_s
        self.losses = Losses()
        self._codec = Codec(track, self.losses)

    @property
    def warnings(self) -> list[str]:
        """Repaired losses, as `kind: sentence`."""
        return self.losses.warnings()

    def feed(self, chunk: bytes, limit_s: float) -> PCM:
        """Return the packet's samples, (S, C) int16, concealed if it is damaged. Raises: Undecodable."""
        del limit_s  # the format bounds the length of a packet
        if chunk.startswith(OGG_MAGIC):
            raise Undecodable(
                "encoding=opus was announced, but the audio is Ogg; send encoding=ogg-opus or no encoding"
            )
        if len(chunk) > MAX_PACKET_BYTES:
            raise Undecodable(
                f"a message has {len(chunk)} bytes; send one Opus packet, at most {MAX_PACKET_BYTES} bytes, per message"
            )
        return self._codec.decode(chunk)

    def drain(self, limit_s: float = math.inf) -> PCM:  # noqa: ARG002 - of `LiveDecoder`
        """Return no samples: none are held back."""
        return self._codec.nothing

    flush = drain


LiveDecoder = PlainReader | ContainerDecoder | OpusDecoder | SniffingDecoder
"""Decoder of one stream, bytes to samples. It must not be used after an error.

`rate` and `channels` of the output are known before the first byte. `bytes_per_s` of the audio as sent is exact, or
typical for its format, and None until the header is read. `inline`: decoding is cheap enough for the event loop, and no
audio is held back. `feed` returns at most `limit_s` of audio: the rest is held.
"""

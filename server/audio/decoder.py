"""Opens the decoder of a live stream: one interface, `LiveDecoder`, over all encodings, sans I/O.

Any way of cutting the bytes gives the same samples, but for raw Opus, where a message is a packet.
"""

from __future__ import annotations

import importlib
import importlib.util

from model.errors import install_hint
from server.audio.containers.live import ContainerDecoder
from server.audio.containers.ogg import MAGIC as OGG_MAGIC
from server.audio.decode_queue import LiveDecoder
from server.audio.formats import OPUS_RATE, PLAIN, AudioForm, Encoding, Losses
from server.audio.packets import MAX_PACKET_BYTES, PacketCodec, Track
from server.audio.pcm import PCM
from server.audio.raw import PLAIN_CODECS, PlainReader
from server.errors import BadParameter, NotInstalled, Undecodable

_CODEC_MODULES = "server.audio.ffmpeg_codec", "server.audio.ffmpeg_container", "av.subtitles.stream"
"""The last one is imported by `av` when it first needs it."""


def load_codecs() -> None:
    """Import what compressed audio needs, where it is installed: at need it would stop every stream for 0.2 s."""
    if importlib.util.find_spec("av") is not None:
        for name in _CODEC_MODULES:
            importlib.import_module(name)


def open_decoder(form: AudioForm, model_rate: int, *, multichannel: bool = False) -> LiveDecoder:
    """Return the decoder of one live stream. Raises: NotInstalled."""
    if form.encoding in PLAIN:
        assert form.sample_rate is not None, "the query names it"
        return PlainReader(PLAIN_CODECS[form.encoding], form.sample_rate, form.channels)
    if importlib.util.find_spec("av") is None and form.encoding is not Encoding.CONTAINER:
        raise NotInstalled(f"{form.encoding.value} needs the optional package: {install_hint('media')}")
    if form.encoding is Encoding.OPUS:
        return OpusDecoder(form.channels)
    rate, channels = form.decoded_rate(model_rate), form.decoded_channels(multichannel=multichannel)
    return ContainerDecoder(form.encoding, rate, channels, mixed=not multichannel)


def open_decoder_for_request(form: AudioForm, model_rate: int, *, multichannel: bool) -> LiveDecoder:
    """As `open_decoder`, for a request that is not admitted yet. Raises: BadParameter if the package is missing."""
    try:
        return open_decoder(form, model_rate, multichannel=multichannel)
    except NotInstalled as error:
        raise BadParameter(f"encoding: {error}") from error


class OpusDecoder:
    """Packets of at most 120 ms, one a message: 20 ms take about 20 µs, so they need no thread."""

    inline = True
    holds = False

    def __init__(self, channels: int) -> None:
        """Open FFmpeg's decoder, which `open_decoder` found to be there."""
        from server.audio.ffmpeg_codec import Codec

        track = Track(PacketCodec.OPUS, OPUS_RATE, channels)
        self.rate = track.rate
        self.channels = channels
        self.bytes_per_s = track.bytes_per_s
        self.losses = Losses()
        self._codec = Codec(track, self.losses)

    def feed(self, chunk: bytes, limit_s: float) -> PCM:
        """Return the packet's samples, (S, C) int16; a damaged one's are made up. Raises: Undecodable."""
        del limit_s  # the format bounds a packet
        if chunk.startswith(OGG_MAGIC):
            raise Undecodable("these are Ogg pages, not Opus packets: send encoding=ogg-opus, or no encoding")
        if len(chunk) > MAX_PACKET_BYTES:
            raise Undecodable("a message must be one Opus packet")
        return self._codec.decode(chunk)

    def drain(self) -> PCM:
        """Nothing is held back."""
        return self._codec.nothing

    flush = drain

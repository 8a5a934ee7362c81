"""What a live stream's bytes go through before its session: one interface over all encodings, sans I/O.

Any way of cutting the bytes gives the same samples, but for raw Opus, where a message is a packet.
"""

from __future__ import annotations

import importlib
import importlib.util

from model.errors import install_hint
from server.audio.containers.live import ContainerDecoder
from server.audio.containers.ogg import MAGIC as OGG_MAGIC
from server.audio.decode_queue import LiveDecoder
from server.audio.formats import OPUS_RATE, PLAIN, AudioForm, Encoding
from server.audio.packets import MAX_PACKET_BYTES, PacketCodec, Track
from server.audio.pcm import PCM
from server.audio.raw import PLAIN_CODECS, PlainReader
from server.errors import BadParameter, NotInstalled, Undecodable


def load_codecs() -> None:
    """Import what compressed audio needs, where it is installed: 0.2 s in which every stream would stand still."""
    if importlib.util.find_spec("av") is not None:
        for name in (
            "server.audio.ffmpeg_codec",
            "server.audio.ffmpeg_container",
            "av.subtitles.stream",
        ):  # the last by av, at need
            importlib.import_module(name)


def open_decoder(form: AudioForm, model_rate: int, *, multichannel: bool = False) -> LiveDecoder:
    """Return the decoder of one live stream. Raises: NotInstalled."""
    if form.encoding in PLAIN:
        return PlainDecoder(form)
    if importlib.util.find_spec("av") is None and form.encoding is not Encoding.CONTAINER:
        raise NotInstalled(f"{form.encoding.value} needs the optional package: {install_hint('media')}")
    if form.encoding is Encoding.OPUS:
        return OpusDecoder(form.channels)
    rate, channels = form.decoded_rate(model_rate), form.decoded_channels(multichannel=multichannel)
    return ContainerDecoder(form.encoding, rate, channels, mixed=not multichannel)


def open_decoder_for_request(form: AudioForm, model_rate: int, *, multichannel: bool) -> LiveDecoder:
    """As `open_decoder`, before a stream is admitted. Raises: BadParameter where the optional package is missing."""
    try:
        return open_decoder(form, model_rate, multichannel=multichannel)
    except NotInstalled as error:
        raise BadParameter(f"encoding: {error}") from error


class PlainDecoder:
    """Linear and telephone samples. The session bounds how much one message may bring."""

    inline = True

    def __init__(self, form: AudioForm) -> None:
        """Take a form that is plain."""
        assert form.sample_rate is not None
        self.rate = form.sample_rate
        self.channels = form.channels
        self._reader = PlainReader(PLAIN_CODECS[form.encoding], form.channels)

    def feed(self, chunk: bytes, limit_s: float) -> PCM:  # noqa: ARG002 - a decoder's: nothing grows here
        """Return the whole samples so far, (S, C) int16."""
        return self._reader.read(chunk)

    def settle(self) -> PCM:
        """Nothing is held back."""
        return self._reader.read(b"")

    def flush(self) -> PCM:
        """An incomplete sample is none."""
        return self._reader.read(b"")


class OpusDecoder:
    """Packets of at most 120 ms, one a message: 20 ms take about 20 µs, so they need no thread."""

    inline = True

    def __init__(self, channels: int) -> None:
        """Open FFmpeg's decoder, which `open_decoder` found to be there."""
        from server.audio.ffmpeg_codec import Codec

        track = Track(PacketCodec.OPUS, OPUS_RATE, channels)
        self.rate = track.rate
        self.channels = channels
        self._codec = Codec(track)

    def feed(self, chunk: bytes, limit_s: float) -> PCM:
        """Return the packet's samples, (S, C) int16. Raises: Undecodable."""
        del limit_s  # the format bounds a packet
        if chunk.startswith(OGG_MAGIC):
            raise Undecodable("these are Ogg pages, not Opus packets: send encoding=ogg-opus, or no encoding")
        if len(chunk) > MAX_PACKET_BYTES:
            raise Undecodable("a message must be one Opus packet")
        return self._codec.decode(chunk)

    def settle(self) -> PCM:
        """Nothing is held back."""
        return self._codec.nothing

    def flush(self) -> PCM:
        """Nothing is held back."""
        return self._codec.nothing

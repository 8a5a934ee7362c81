"""Audio as clients send it, live or uploaded, to 16-bit samples. Sans I/O, but `lane` knows the event loop."""

from server.media.decoder import LiveDecoder, load_codecs, open_at_the_door, open_decoder
from server.media.encodings import AudioForm, Encoding, audio_form
from server.media.errors import Inflated, MediaError, NotInstalled, NotTaken, Undecodable
from server.media.lane import DecodingPool, Lane

__all__ = [
    "AudioForm",
    "DecodingPool",
    "Encoding",
    "Inflated",
    "Lane",
    "LiveDecoder",
    "MediaError",
    "NotInstalled",
    "NotTaken",
    "Undecodable",
    "audio_form",
    "load_codecs",
    "open_at_the_door",
    "open_decoder",
]

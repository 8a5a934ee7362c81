"""What can be wrong with audio, named by who must act; every message is meant for the client.

MediaError
├── Undecodable    the client: the bytes are not what they are said to be, or damaged
├── NotTaken       the client: this is audio, but of a kind that is not taken here
├── Inflated       the client: it decodes to more audio than its bytes and its time account for
└── NotInstalled   the operator: the optional package that decodes it is missing
"""

from __future__ import annotations

from server.errors import ServerError


class MediaError(ServerError):
    """This audio cannot be taken; nothing more comes of its decoder."""


class Undecodable(MediaError):
    """The bytes are not what they are said to be, or damaged."""


class NotTaken(MediaError):
    """A kind of audio that is not taken here."""


class Inflated(MediaError):
    """A few bytes that decode to hours."""


class NotInstalled(MediaError):
    """Decoding needs an optional package."""

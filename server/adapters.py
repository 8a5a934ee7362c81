"""The protocols beside Deepgram's: their endpoints on the app, and a port of its own for the one that wants it."""

from __future__ import annotations

from fastapi import FastAPI, Response

from server.access.guard import Door
from server.protocols.openai.endpoint import RealtimeEndpoint
from server.protocols.openai.transcriptions import Transcriptions
from server.protocols.twilio.endpoint import TwilioEndpoint
from server.protocols.uploads import Recordings
from server.protocols.vosk.endpoint import VoskEndpoint
from server.protocols.vosk.listener import VoskListener
from server.replica import Replica


class Adapters:
    """Adds the endpoints at once; what listens by itself does so from `start` to `stop`."""

    def __init__(self, app: FastAPI, replica: Replica, door: Door, recordings: Recordings) -> None:
        settings = replica.settings
        vosk = VoskEndpoint(replica, door)
        app.add_api_websocket_route("/vosk", vosk.live)
        app.add_api_websocket_route("/v1/realtime", RealtimeEndpoint(replica, door).live)
        self.vosk = None if settings.vosk_port is None else VoskListener(vosk, replica, door, settings.vosk_port)
        app.add_api_websocket_route("/v1/twilio", TwilioEndpoint(replica, door).live)
        create = Transcriptions(replica, door, recordings).create
        app.add_api_route("/v1/audio/transcriptions", create, methods=["POST"], response_class=Response)
        app.state.adapters = self

    async def start(self) -> None:
        """Listen. Raises: OSError if an address is taken."""
        if self.vosk is not None:
            await self.vosk.start()

    def stop(self) -> None:
        """End what is left."""
        if self.vosk is not None:
            self.vosk.stop()

"""Client for live speech recognition over WebSockets: streams that survive lost connections, and typed messages.

    async with open_stream("ws://127.0.0.1:8080", resumable=True) as stream:
        await stream.send(pcm)
        await stream.close_stream()
        async for message in stream:
            if isinstance(message, Results) and message.is_final:
                print(message.text)

`open_stream` reconnects; `connect` is a single connection; `await transcribe("speech.wav")` is a whole recording.
`tutti_asr_client.sync` has the same three without an event loop. `tutti_asr_client.files` reads audio files and shows
transcripts; it needs the extra `tutti-asr-client[files]`. Does not depend on the server, a model or torch.
"""

from tutti_asr_client.connection_events import (
    AudioLost,
    CaughtUp,
    Connected,
    ConnectionEvents,
    Event,
    TicketRefused,
    Waiting,
)
from tutti_asr_client.errors import (
    AudioError,
    BadMessage,
    BadUrl,
    ClientError,
    ClosedAbnormally,
    Interrupted,
    Refused,
    Unreachable,
)
from tutti_asr_client.live import ListenClient, connect
from tutti_asr_client.messages import (
    ConfigureFailure,
    ConfigureSuccess,
    ContextFailure,
    ContextSuccess,
    Error,
    Message,
    Metadata,
    Results,
    RewindFailure,
    SpeechStarted,
    UtteranceEnd,
    Word,
)
from tutti_asr_client.resilient import ResilientClient
from tutti_asr_client.retry import Retry
from tutti_asr_client.stream import open_stream
from tutti_asr_client.transcript import Transcript
from tutti_asr_client.uploads import Transcription, Utterance, transcribe

__all__ = [
    "AudioError", "AudioLost", "BadMessage", "BadUrl", "CaughtUp", "ClientError", "ClosedAbnormally",
    "ConfigureFailure", "ConfigureSuccess", "Connected", "ConnectionEvents", "ContextFailure", "ContextSuccess",
    "Error", "Event", "Interrupted", "ListenClient", "Message", "Metadata", "Refused", "ResilientClient", "Results",
    "Retry", "RewindFailure", "SpeechStarted", "TicketRefused", "Transcript", "Transcription", "Unreachable",
    "Utterance", "UtteranceEnd", "Waiting", "Word", "connect", "open_stream", "transcribe",
]  # fmt: skip

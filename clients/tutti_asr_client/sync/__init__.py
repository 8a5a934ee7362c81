"""The client without an event loop: `open_stream`, `connect` and `transcribe` for programs that do not use asyncio.

    with open_stream("ws://127.0.0.1:8080", resumable=True) as stream:
        stream.send(pcm)
        stream.close_stream()
        for message in stream:
            if isinstance(message, Results) and message.is_final:
                print(message.text)

Functions, arguments, messages and errors are those of `tutti_asr_client`; the work is done by its asynchronous client,
on one background thread for each stream.
"""

from tutti_asr_client.sync.streams import ListenClient, ResilientClient, connect, open_stream, transcribe

__all__ = ["ListenClient", "ResilientClient", "connect", "open_stream", "transcribe"]

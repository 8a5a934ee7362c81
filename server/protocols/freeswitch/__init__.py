"""FreeSWITCH's mod_audio_stream: the audio of a call over a WebSocket."""

"""Deepgram's Flux protocol at `/v2/listen`: turns of one speaker instead of segments."""

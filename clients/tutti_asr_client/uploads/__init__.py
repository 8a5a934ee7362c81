"""Transcription of whole recordings by HTTP, at `POST /v1/listen`."""

"""OpenAI's transcription interfaces: Realtime sessions and file uploads."""

"""OpenAI's transcription interfaces: Realtime sessions and file uploads. Source: protocols.md, sections 5.1 and 6."""

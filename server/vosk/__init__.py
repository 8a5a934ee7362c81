"""The protocol of vosk-server: lock-step, one answer to every frame of audio. Source: protocols.md, section 4."""

"""The protocol of vosk-server: lock-step, one answer to every frame of audio."""

"""vosk-server's protocol: one answer to every audio frame."""

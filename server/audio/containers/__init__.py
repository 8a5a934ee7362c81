"""Demuxers of live containers: WAV, Ogg, FLAC, WebM."""

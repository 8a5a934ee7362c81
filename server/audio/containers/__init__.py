"""Streaming demuxers: WAV, Ogg, FLAC, WebM, MP4, MP3 and ADTS."""

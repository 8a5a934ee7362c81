"""Transcribing files, as `tutti transcribe` does; needs the extra `tutti-asr-client[files]`."""

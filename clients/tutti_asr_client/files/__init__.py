"""Transcription of files, as in `tutti transcribe`; needs the extra `tutti-asr-client[files]`."""

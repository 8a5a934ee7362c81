"""Deepgram's `/v1/listen`: live streams, uploads, and resuming with tickets."""

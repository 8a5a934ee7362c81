"""Deepgram's `/v1/listen`, live and uploaded, with tickets for resuming."""

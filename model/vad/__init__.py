"""Voice activity detection: the Silero network as a compiled step, with slots for many streams."""

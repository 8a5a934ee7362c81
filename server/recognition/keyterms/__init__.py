"""Key terms: what a client names, what other speakers said, and how both change during a session."""

"""Key terms: those given by the client, those from other speakers' text, and their changes during a session."""

"""Three applications over `batching/` that are not speech recognition; a checkout runs them, wheels leave them out."""

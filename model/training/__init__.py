"""Everything that learns, makes training data, or measures while a model is made. No server imports any of it."""

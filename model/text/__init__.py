"""Written text as it is said and spelled, for language models, key terms and references alike. Knows no model."""

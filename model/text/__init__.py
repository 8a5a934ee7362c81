"""Text normalization: written text as it is spoken and spelled, for language models, key terms and references."""

"""Training of language models: counting, estimating, mixing and pruning n-grams; tuning weights."""

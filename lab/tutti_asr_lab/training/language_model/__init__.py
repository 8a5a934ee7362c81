"""Training of language models: gathering texts; counting, estimating, mixing and pruning n-grams; tuning weights."""

"""Making of language models: texts gathered, n-grams counted, estimated, mixed and pruned, decoding weights tuned."""

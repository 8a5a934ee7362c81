"""CTC decoding: log-probabilities in, words with times and confidence out, incrementally and per stream."""

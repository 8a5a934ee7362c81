"""Comparisons and one-off measurements: other servers, GPU, key terms, other recognizers, training at scale."""

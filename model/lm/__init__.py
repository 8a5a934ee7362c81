"""Word n-gram language models for serving: ARPA files, and the flat arrays that the beam search reads."""

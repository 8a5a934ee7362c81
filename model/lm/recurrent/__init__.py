"""A recurrent language model over pieces of words, which scores whole hypotheses in exact 8-bit arithmetic."""

"""Recurrent language model over word pieces, which scores whole hypotheses in exact 8-bit arithmetic."""

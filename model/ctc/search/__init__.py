"""Prefix beam search as compiled code: a stream's tree of prefixes is in one block of memory."""

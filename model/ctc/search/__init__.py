"""Prefix beam search as machine code: one stream's tree of prefixes in one block of memory, advanced frame by frame."""

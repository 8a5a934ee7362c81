"""Acoustic model of attention and convolution whose windows read ahead: an exact 8-bit step, and whole segments."""

"""The compiled decoder and joiner of transducers."""

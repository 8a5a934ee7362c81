"""Moonshine: an encoder-decoder network that reads whole segments, in exact integers between fixed-order floats."""

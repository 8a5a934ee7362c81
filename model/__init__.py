"""Acoustic model: audio in, character log-probabilities out, every carried-over value in a named state."""

import os

# oneDNN prepares a kernel for each shape of a product, 3 to 15 ms each, and keeps 1,024 unless told otherwise: fewer
# than the batch sizes need that a server warms up, so that some are prepared again under load (loadtest/LOG.md). It
# asks for this when it first computes. https://uxlfoundation.github.io/oneDNN/dev_guide_primitive_cache.html
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "8192")

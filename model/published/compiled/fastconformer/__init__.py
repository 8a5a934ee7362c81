"""The compiled step of NeMo's cache-aware FastConformer."""

"""Published streaming models in sherpa-onnx's ONNX format: loading, features, batched steps, tokens."""

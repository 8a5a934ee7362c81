"""Published streaming models in the ONNX form that sherpa-onnx reads: loading, features, batched steps, tokens."""

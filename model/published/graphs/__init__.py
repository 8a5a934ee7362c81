"""ONNX graphs of published models: their files, their sessions, and how they are rewritten."""

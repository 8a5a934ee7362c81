"""The compiled step of Zipformer 2 with a streaming encoder, for CTC graphs and the encoders of transducers."""

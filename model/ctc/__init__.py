"""CTC decoding: log-probabilities in, words with times and confidence out, incrementally and per stream."""

from model.ctc.greedy import GreedyDecoder, best_path
from model.ctc.words import Decoder, DecoderState, LogProbs, Word

__all__ = ["Decoder", "DecoderState", "GreedyDecoder", "LogProbs", "Word", "best_path"]

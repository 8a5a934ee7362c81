"""CTC decoding: log-probabilities in, words with times and confidence out, incrementally and per stream."""

from model.ctc.beam import BeamDecoder
from model.ctc.bias import NO_BIAS, Bias, BiasError
from model.ctc.greedy import GreedyDecoder, best_path
from model.ctc.weights import DecodingWeights
from model.ctc.words import Decoder, DecoderState, LogProbs, Word

__all__ = [
    "NO_BIAS",
    "BeamDecoder",
    "Bias",
    "BiasError",
    "Decoder",
    "DecoderState",
    "DecodingWeights",
    "GreedyDecoder",
    "LogProbs",
    "Word",
    "best_path",
]

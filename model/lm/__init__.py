"""Word n-gram language models: ARPA files in, flat arrays that the beam search reads, and the making of such models."""

from model.lm.errors import LanguageModelError
from model.lm.language_model import LanguageModel, Perplexity

__all__ = ["LanguageModel", "LanguageModelError", "Perplexity"]

"""Word n-gram language models as they are served: an ARPA file in, flat arrays that the beam search reads out."""

"""Training of the punctuation tagger: texts, labels, training run and evaluation."""

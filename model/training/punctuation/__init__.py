"""Training of the punctuation tagger: texts, labels, the network and its evaluation."""

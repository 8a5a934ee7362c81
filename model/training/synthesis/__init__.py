"""Synthetic speech: generated sentences, spoken by espeak-ng and flite, for training and as the shipped samples."""

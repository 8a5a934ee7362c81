"""Training losses: CTC, the probability of all label sequences, distillation."""

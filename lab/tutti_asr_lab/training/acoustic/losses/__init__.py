"""Training losses: CTC, consistency between views, the probability of all label sequences, distillation."""

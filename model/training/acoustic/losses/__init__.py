"""What training minimises: CTC, the divergence between views, the probability of all label sequences."""

"""`python -m tutti_asr_lab.trials.hostile`: a server under attack by hostile clients."""

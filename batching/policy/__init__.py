"""Rules of the batcher: measured service times, due times of steps, limits on background work. Pure; time is passed."""

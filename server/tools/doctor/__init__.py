"""`tutti doctor`: checks of the machine, of settings and of the models."""

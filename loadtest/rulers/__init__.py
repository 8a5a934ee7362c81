"""Rulers of voice agents: the figures by which users compare servers, each as its own benchmark defines it."""

"""Live connections, independent of their protocol."""

"""What hostile clients send: broken handshakes, frames, containers, bodies and texts, at a steady rate."""

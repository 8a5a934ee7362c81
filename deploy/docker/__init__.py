"""The images: what they are made of, and the health check inside them."""

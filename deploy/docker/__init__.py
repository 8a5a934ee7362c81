"""The images: what they are made of, and a rehearsal of making them. Scripts and data, nothing to import."""

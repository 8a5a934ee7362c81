"""Where the texts of the shipped language models come from: packages, files, manifests, and another model."""

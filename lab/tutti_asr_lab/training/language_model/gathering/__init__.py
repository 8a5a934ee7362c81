"""Sources of the texts of the shipped language models: packages, files, manifests, and another model."""

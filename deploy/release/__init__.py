"""Release: one version everywhere, and what `make release` builds from a commit."""

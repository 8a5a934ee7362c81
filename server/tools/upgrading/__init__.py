"""Upgrades: what releases had, what changed since then, the checks of `tutti doctor --from` and `docs/upgrading.md`."""

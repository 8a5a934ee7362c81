"""The Helm chart and its rendering."""

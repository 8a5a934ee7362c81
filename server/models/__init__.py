"""The models that a server has loaded: registry, loading, selection for a request, one service each."""

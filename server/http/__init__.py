"""HTTP endpoints other than recognition, and uvicorn's configuration."""

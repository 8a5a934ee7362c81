"""What is served over HTTP beside recognition, and uvicorn's configuration."""

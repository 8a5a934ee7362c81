"""Usage of streams and uploads by API key: records, their log, and totals over the logs of several servers."""

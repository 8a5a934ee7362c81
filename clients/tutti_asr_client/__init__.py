"""Clients of the server: a live connection, file reading, and `tutti transcribe`.

Knows the Deepgram wire and files on disk; knows no model, no engine and no torch.
"""

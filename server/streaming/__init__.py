"""One live connection, whatever protocol it speaks."""

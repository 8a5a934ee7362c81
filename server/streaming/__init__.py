"""One live connection, in any protocol."""

"""Recognition of audio samples as events, independent of sockets, wire formats and web frameworks."""

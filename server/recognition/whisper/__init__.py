"""A second pass by a foreign recognizer (Whisper): its text with our times, on threads with a deadline."""

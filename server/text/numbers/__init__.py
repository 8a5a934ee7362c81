"""Numbers in words and in digits: reading, writing, and runs of spoken digits, in English and Chinese."""

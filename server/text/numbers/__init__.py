"""Numbers, dates and times in words and in digits, and runs of spoken digits, in English and Chinese."""

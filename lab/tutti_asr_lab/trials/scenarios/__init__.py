"""One module a trial: its options, what happens, and the bars."""

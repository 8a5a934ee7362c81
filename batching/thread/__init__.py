"""The model thread: what it is told to do, its loop, how its results leave it, whose turn it is."""

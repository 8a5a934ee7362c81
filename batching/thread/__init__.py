"""The model thread: its commands, its loop, the delivery of its results, and the token that engines share."""

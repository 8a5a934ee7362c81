"""What the batcher weighs: service times learned, when steps are due, what fills a batch. Pure, and told the time."""

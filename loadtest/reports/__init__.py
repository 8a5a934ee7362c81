"""What a measurement reports: its criteria, its page, and the machine that it was made on."""

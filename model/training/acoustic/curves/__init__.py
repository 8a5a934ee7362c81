"""What training runs report: their figures as rows of a file, and pictures of them."""

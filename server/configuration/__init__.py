"""What an operator writes: environment variables, the models file and listening addresses."""

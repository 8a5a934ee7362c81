"""What is measured, a module a section: each yields cases, and a case returns the values of one row."""

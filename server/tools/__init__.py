"""Programs for operators and developers; none of them is part of a running server."""

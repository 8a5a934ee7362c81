"""From samples to events: no socket, no wire format, no web framework."""

"""What operators see and do: metrics, logs, drain, watchdog."""

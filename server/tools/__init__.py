"""Programs that run beside a server, never inside one."""

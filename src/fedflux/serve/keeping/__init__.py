"""What a service keeps: API keys, the audit log, and the watch over it."""

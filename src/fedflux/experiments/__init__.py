"""What is asked: configuration, presets, the runner and what it leaves on disk."""

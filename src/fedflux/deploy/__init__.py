"""Life after training and beyond one machine."""

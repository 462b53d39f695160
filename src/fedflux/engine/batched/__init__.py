"""Many clients at once in one model, for GPUs and small models."""

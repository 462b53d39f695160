"""Where runs are kept: folders, checkpoints, the store."""

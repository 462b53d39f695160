"""Where a client belongs: distances to clusters, novelty and confidence."""

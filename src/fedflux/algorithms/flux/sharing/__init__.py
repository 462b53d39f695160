"""What clusters of a FLUX run have in common: who averages which layers, and how members vote on it."""

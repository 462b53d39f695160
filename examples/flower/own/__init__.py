"""A model and data of one's own, federated by FLUX."""

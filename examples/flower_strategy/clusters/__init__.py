"""FLUX's clusters in a Flower strategy of one's own: `flwr run examples/flower_strategy`."""

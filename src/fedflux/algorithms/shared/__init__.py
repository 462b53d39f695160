"""What several methods use: averaging, momentum, fine-tuning, membership."""

"""What single models are run with: fused layers, chains trained without autograd, a module as plain operations."""

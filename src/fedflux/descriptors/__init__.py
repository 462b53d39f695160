"""What clients say about their data: bounds, projector, moments, the descriptor and its wire form."""

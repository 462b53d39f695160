"""Do two groups of clients hold one distribution? Pooled moments, and the tests on them."""

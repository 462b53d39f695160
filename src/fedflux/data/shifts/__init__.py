"""How simulated clients differ: patterns, levels, drift."""

"""After the last round: what a run is asked, what it came to, and what is kept of it."""

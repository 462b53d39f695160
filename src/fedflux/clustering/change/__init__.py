"""Has a client changed? What it told first and since, and tests of the two."""

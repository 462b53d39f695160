"""What people use from Python: runs and their results, trained federations, and FLUX inside loops of their own."""

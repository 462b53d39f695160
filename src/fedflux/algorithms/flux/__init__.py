"""FLUX and its kin."""

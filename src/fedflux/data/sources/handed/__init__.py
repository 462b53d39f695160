"""Federations of data that is handed in from Python."""

"""Clients over the cores of one machine."""

"""Difference tracking: the default method, with one pass over the records per step."""

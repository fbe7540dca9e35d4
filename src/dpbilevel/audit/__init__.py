"""Attacks on ourselves: what an adversary learns from what the library releases."""

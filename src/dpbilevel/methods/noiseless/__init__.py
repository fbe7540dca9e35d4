"""Deterministic solvers for runs without noise, whose stopping rules may depend on exact values."""

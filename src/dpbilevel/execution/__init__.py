"""Execution of a method: its program, exact means for runs without noise, progress, and warnings before the charge."""

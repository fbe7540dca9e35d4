"""Difference tracking: one pass over records per step, and how hyperparameters move."""

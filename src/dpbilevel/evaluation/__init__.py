"""Scores of a released model on held-out private records, released and charged like everything else."""

"""Checkpoints of interrupted runs: the saved content, the file, and the fingerprint that identifies a run."""

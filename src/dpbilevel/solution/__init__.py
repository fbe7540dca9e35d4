"""What a run returns, what is worth knowing of it, and what became of it."""

"""How a method runs: its program, exact means for runs without noise, progress, and what is said before the charge."""

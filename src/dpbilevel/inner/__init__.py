"""Private solvers for the lower level."""

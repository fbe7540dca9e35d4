"""The result of a run: released values, diagnostics, remarks, and the outcome in one sentence."""

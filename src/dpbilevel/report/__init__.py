"""Reports for a privacy review, made from a solution alone: released values and public facts."""

"""Reports for a privacy review, made from a solution alone. They contain released values and public facts only."""

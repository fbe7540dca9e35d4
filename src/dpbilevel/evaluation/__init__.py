"""Private scores of a released model on held-out private records, charged like any other release."""

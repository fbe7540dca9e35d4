"""Tables into rows of a known norm, from declared ranges and categories."""

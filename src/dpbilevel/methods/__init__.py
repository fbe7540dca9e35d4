"""The outer algorithms, and what they share."""

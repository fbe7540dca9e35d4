"""The outer algorithms."""

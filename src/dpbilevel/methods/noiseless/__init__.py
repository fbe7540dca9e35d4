"""Deterministic solves for runs without noise, which may stop on exact values."""

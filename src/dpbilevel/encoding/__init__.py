"""Encoding of tables as rows of bounded norm, from declared ranges and categories."""

"""Helpers that depend on nothing else in the library: argument checks, files, text tables, tracing, precision."""

"""What needs nothing else of the library: checks of arguments, files, tables of text, tracing, precision."""

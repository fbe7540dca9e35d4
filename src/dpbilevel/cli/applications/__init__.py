"""Applications on the command line. Each module has one, its `COMMAND`; to be here is to be registered."""

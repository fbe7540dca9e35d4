"""Applications on the command line. Each module defines one, its `COMMAND`; all modules here are registered."""

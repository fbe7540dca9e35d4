"""The command line. Modules import what a command needs only when it is called, so that help does not load JAX."""

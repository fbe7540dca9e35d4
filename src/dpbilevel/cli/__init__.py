"""The command line. Its modules load what a command needs when it is called: help must not wait for JAX."""

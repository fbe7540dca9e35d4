"""`python -m dpbilevel.cli` is the command `dpbilevel`."""

from dpbilevel.cli.app import main

main()

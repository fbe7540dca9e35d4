"""`python -m dpbilevel.cli` is the command `dpbilevel`."""

from dpbilevel.cli.entry import main

main()

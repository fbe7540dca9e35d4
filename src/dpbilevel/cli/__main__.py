"""`python -m dpbilevel.cli` runs the command `dpbilevel`."""

from dpbilevel.cli.entry import main

main()

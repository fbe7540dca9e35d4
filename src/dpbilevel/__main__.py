"""`python -m dpbilevel` runs the command `dpbilevel`."""

from dpbilevel.cli.entry import main

if __name__ == "__main__":
    main()

"""Which version of the library this is: results and ledgers carry it."""

import importlib.metadata


def version() -> str:
    """The version of the library, as a result carries it."""
    try:
        return importlib.metadata.version("dpbilevel")
    except importlib.metadata.PackageNotFoundError:  # imported from source, not installed
        return "from source"

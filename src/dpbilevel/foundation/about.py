"""The version of the library, which results and ledgers record."""

import importlib.metadata


def version() -> str:
    """The version of the installed library."""
    try:
        return importlib.metadata.version("dpbilevel")
    except importlib.metadata.PackageNotFoundError:  # imported from source, not installed
        return "from source"

"""The limit of ``--memory``, as it is typed."""

import re

from dpbilevel.errors import InvalidArgument

_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def memory_limit(text: str) -> int:
    """A number of bytes.

    >>> memory_limit("2GB"), memory_limit("1.5 gb")
    (2000000000, 1500000000)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]B)\s*", text.upper())
    if found is None:
        raise InvalidArgument(f"--memory {text}: must be a number with MB, GB or TB (try 2GB)")
    return int(float(found[1]) * _UNITS[found[2]])

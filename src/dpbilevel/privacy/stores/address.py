"""Where the store of a data set is, as a pickle carries it: everything that it takes to open it, but no password."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Address:
    """Address and name of a ledger in a database.

    Attributes:
        database: the parts of its URL by name, without the password.
        dataset: the name of the data set.
        who: the name that charges carry; None for the user of the process that charges.
        seen: how many entries there were, and the digest of the last; another ledger at the same address is refused.
        had_password: whether the URL had a password, which must now come from elsewhere.
    """

    database: Mapping[str, Any]
    dataset: str
    who: str | None
    seen: tuple[int, str]
    had_password: bool

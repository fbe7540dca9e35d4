"""The address of a ledger in a database, as stored in pickles: all that is needed to open it except the password."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Address:
    """Address and name of a ledger in a database.

    Attributes:
        database: the components of its URL by name, without the password.
        dataset: the name of the data set.
        who: the name recorded with each charge; None for the user of the charging process.
        seen: the number of entries and the digest of the last; a different ledger at the same address is refused.
        had_password: whether the URL had a password, which must now be supplied by other means.
    """

    database: Mapping[str, Any]
    dataset: str
    who: str | None
    seen: tuple[int, str]
    had_password: bool

"""Results of benchmarks, given as a file or as its content."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpbilevel.errors import InvalidArgument

Results = str | Path | Mapping[str, Any]


def parse(results: Results, key: str, example: str) -> Mapping[str, Any]:
    """The content of a results file; it must have ``key``."""
    content: Any = results
    if isinstance(results, str | Path):
        try:
            content = json.loads(Path(results).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise InvalidArgument(
                f"results={str(results)!r}: is not a JSON file; pass one such as {example}"
            ) from error
    if not isinstance(content, Mapping) or key not in content:
        raise InvalidArgument(f"results: must be the path of a file such as {example}, or its content")
    return content

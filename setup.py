"""The description on a package index, where links that are relative to the repository would lead nowhere.

Everything else about the package is in pyproject.toml.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")


def description(readme: str, repository: str | None) -> str:
    """README with absolute links: to files of the repository, or, as long as it has no address, with none to them."""

    def absolute(link: re.Match[str]) -> str:
        if "://" in link["target"] or link["target"].startswith("#"):
            return link[0]
        if repository is None:
            return "" if link["picture"] else link["text"]
        kind = "raw" if link["picture"] else "blob"
        return f"{link['picture']}[{link['text']}]({repository}/{kind}/HEAD/{link['target']})"

    return LINK.sub(absolute, readme)


if __name__ == "__main__":
    project = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    setup(
        long_description=description(
            (HERE / "README.md").read_text(encoding="utf-8"), project.get("urls", {}).get("Repository")
        ),
        long_description_content_type="text/markdown",
    )

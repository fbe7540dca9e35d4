"""Links that leave the documentation, to source files and to CONTRIBUTING: the site has a page for each file.

On GitHub such a link opens the file. The site holds the documentation alone, so each file that a page links to becomes
a page of its own that shows it, outside of the navigation and of the search.
"""

import posixpath
import re
from pathlib import Path, PurePosixPath

from properdocs.config.defaults import ProperDocsConfig
from properdocs.exceptions import PluginError
from properdocs.structure.files import File, Files, InclusionLevel
from properdocs.structure.pages import Page

_LINK = re.compile(r"\]\((?P<target>[^)\s#:]+)(?P<rest>#[^)\s]*)?\)")
_HOME = "source"  # where the pages of files are, inside the site


def on_files(files: Files, config: ProperDocsConfig) -> Files:
    """Add a page for every file outside of the documentation that a page links to."""
    root = _root(config)
    linked = set()
    for file in files.documentation_pages():
        for match in _LINK.finditer(file.content_string):
            target = outside(match["target"], file.src_uri, config)
            if target is not None:
                linked.add(target)
    for target in sorted(linked):
        if not (root / target).is_file():
            raise PluginError(f"a page links to {target}, which is not a file of the repository")
        shown = _page(target, (root / target).read_text(encoding="utf-8"))
        files.append(File.generated(config, _uri(target), content=shown, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Page, config: ProperDocsConfig, files: Files) -> str:
    """Lead links that leave the documentation to the pages of their files."""

    def rewritten(match: re.Match[str]) -> str:
        target = outside(match["target"], page.file.src_uri, config)
        if target is None:
            return match[0]
        return f"]({posixpath.relpath(_uri(target), posixpath.dirname(page.file.src_uri) or '.')})"

    return markdown if page.file.src_uri.startswith(f"{_HOME}/") else _LINK.sub(rewritten, markdown)


def outside(target: str, page: str, config: ProperDocsConfig) -> str | None:
    """The path in the repository of a file that a link leads to, None where it stays in the documentation.

    Args:
        target: of the link, relative to the page.
        page: path of the page in the documentation.
        config: says where the documentation is.
    """
    home = Path(config.docs_dir).name
    path = posixpath.normpath(posixpath.join(home, posixpath.dirname(page), target))
    return None if path.startswith(f"{home}/") else path


def _root(config: ProperDocsConfig) -> Path:
    return Path(config.config_file_path).parent


def _uri(target: str) -> str:
    return f"{_HOME}/{target}" if target.endswith(".md") else f"{_HOME}/{target}.md"


def _page(target: str, text: str) -> str:
    front = "---\nsearch:\n  exclude: true\nhide:\n  - navigation\n  - toc\n---\n"
    if target.endswith(".md"):
        return front + text
    return f"{front}# {PurePosixPath(target).name}\n\n`{target}`\n\n````python\n{text}````\n"

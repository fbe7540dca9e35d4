"""A figure as inline SVG for an HTML page: real text, the page's colours, and text alternatives.

Matplotlib writes a standalone file. Inside a page, its ids must not clash with those of other pictures, its text must
use the page's font and colour (for dark pages), and its size must follow the page's width.
"""

import io
import re
import warnings
from typing import Any
from xml.etree import ElementTree

from dpbilevel.foundation.tables import visible
from dpbilevel.plot.style import FAINT, INK, SETTINGS

_FONT = re.compile(r"font(?:-family)?:\s*(?:(?:\w+\s+)?(?P<size>[\d.]+px)\s+)?[^;]+;?\s*")
_REFERENCE = re.compile(r"url\(#([^)]+)\)")
_LONG = re.compile(r"-?\d+\.\d{3,}")
_PAINTS = {INK: "currentColor", FAINT: "var(--faint, #a3a3a3)"}


def inline_svg(figure: Any, *, name: str, title: str, description: str) -> str:
    """The figure as an ``<svg>`` element.

    Args:
        figure: a matplotlib figure drawn by `dpbilevel.plot`.
        name: unique in the page; every id of the picture starts with it.
        title, description: text alternatives for readers who cannot see the picture.
    """
    root = ElementTree.fromstring(_written(figure))
    _bare(root)
    for part in ("metadata", "defs/style"):
        parent = root.find(part.rpartition("/")[0] or ".")
        child = root.find(part)
        if parent is not None and child is not None:
            parent.remove(child)
    used = {target for element in root.iter() for target in _targets(element)}
    for element in root.iter():
        _rewrite(element, name, used)
    box = root.get("viewBox", "")
    root.attrib.clear()
    root.attrib.update({"viewBox": box, "role": "img", "aria-labelledby": f"{name}-title"})
    alternatives = {"title": title, "desc": description}
    for place, (tag, text) in enumerate(alternatives.items()):
        if text:
            alternative = ElementTree.Element(tag, {"id": f"{name}-{tag}"})
            alternative.text = visible(text)
            root.insert(place, alternative)
    if description:
        root.set("aria-describedby", f"{name}-desc")
    return ElementTree.tostring(root, encoding="unicode", method="xml")


def _written(figure: Any) -> str:
    import matplotlib

    target = io.StringIO()
    with matplotlib.rc_context(SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the text is drawn in the reader's fonts
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(target, format="svg", metadata=nothing)
    return target.getvalue()


def _bare(root: ElementTree.Element) -> None:
    """Drop namespaces, which inline SVG in HTML does not need."""
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        for key in list(element.attrib):
            if "}" in key:
                element.attrib[key.rpartition("}")[2]] = element.attrib.pop(key)


def _targets(element: ElementTree.Element) -> list[str]:
    """Ids that an element refers to."""
    linked = [element.get("href", "").removeprefix("#")] if element.get("href", "").startswith("#") else []
    return linked + [target for value in element.attrib.values() for target in _REFERENCE.findall(value)]


def _rewrite(element: ElementTree.Element, name: str, used: set[str]) -> None:
    own = element.attrib.pop("id", None)
    for key, value in element.attrib.items():
        value = _REFERENCE.sub(rf"url(#{name}-\1)", value)
        if key == "href" and value.startswith("#"):
            value = f"#{name}-{value[1:]}"
        if key == "style":
            value = _FONT.sub(lambda match: f"font-size: {match['size']}; " if match["size"] else "", value)
        if key in ("d", "transform", "x", "y", "points"):
            value = _LONG.sub(lambda match: f"{float(match[0]):.2f}", value)
        for paint, replacement in _PAINTS.items():
            value = value.replace(paint, replacement)
        element.set(key, value)
    if own in used:
        element.set("id", f"{name}-{own}")

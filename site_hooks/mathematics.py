"""Formulas of the documentation as MathML, made when the site is built: a reader needs no JavaScript and no network.

Pages are written with $...$ and $$...$$, which GitHub renders too. `pymdownx.arithmatex` finds the formulas and leaves
them in elements of its own class; here each becomes the MathML of latex2mathml. A formula that cannot be converted
fails the build. Guarantees of docstrings get a class of their own, for the style sheet.
"""

import html
from xml.etree import ElementTree

from latex2mathml.converter import convert_to_element
from markdown import Markdown
from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor
from properdocs.config.defaults import ProperDocsConfig

_AFTER_INLINE_PATTERNS = 15  # the priority of Python-Markdown's own is 20: by then all formulas have been found
_GUARANTEE = "Guarantee:"
_WORDS = {"\\arg": "arg"}  # operators that latex2mathml does not know
_WITH_LIMITS = ("max", "min", "argmin")  # in displays, what is written below belongs there


def on_config(config: ProperDocsConfig) -> ProperDocsConfig:
    """Teach Markdown, of pages and of docstrings, what this module does."""
    config.markdown_extensions.append(MathML())  # type: ignore[arg-type]
    return config


def mathml(formula: str, display: bool) -> ElementTree.Element:
    """A formula as an element ``math``; its source is kept as the text that screen readers and copying may use."""
    element = convert_to_element(formula, display="block" if display else "inline")
    for part in element.iter():
        part.text = html.unescape(part.text) if part.text else None
        if part.text in _WORDS:
            part.tag, part.text = "mo", _WORDS[part.text]
        space = _space(part)
        if space is not None:
            part.set("lspace", space)
            part.set("rspace", space)
        if display and part.tag == "msub" and part[0].text in _WITH_LIMITS:
            part.tag = "munder"
        if "\\" in (part.text or "") or part.text == "&":
            raise ValueError(f"formula {formula!r}: latex2mathml does not know {part.text!r}; write it in another way")
    element.attrib.pop("xmlns", None)  # HTML needs no namespace
    element.set("alttext", formula)
    return element


def _space(part: ElementTree.Element) -> str | None:
    """The space around an operator where a browser's own would be too wide: around words, and slashes in the line."""
    text = part.text or ""
    if part.tag != "mo" or not (text == "/" or (text.isalpha() and text.isascii())):
        return None
    return "0" if text == "/" else "0.167em"


class MathML(Extension):
    """The Markdown extension; it works on what `pymdownx.arithmatex` leaves."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Register the processor."""
        md.treeprocessors.register(_Formulas(md), "mathml", _AFTER_INLINE_PATTERNS)


class _Formulas(Treeprocessor):
    def run(self, root: ElementTree.Element) -> None:
        for element in root.iter():
            if element.get("class") == "arithmatex":
                formula = html.unescape(element.text or "").strip()
                element.text = None
                element.append(mathml(formula, display=element.tag == "div"))
            elif element.tag == "p" and (element.text or "").startswith(_GUARANTEE):
                element.set("class", "guarantee")

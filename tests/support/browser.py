"""A page in a real browser: what it looks like at a width, in a colour scheme, and what axe-core says of it."""

import html
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

AXE = Path(__file__).parents[2] / ".browser" / "axe.min.js"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

needs_browser = pytest.mark.skipif(
    CHROMIUM is None or not AXE.exists(), reason="no Chromium or no axe-core: make .browser/.ready installs both"
)

# A window cannot be narrower than 500 pixels; a frame in it can.
_FRAMES = """<!DOCTYPE html><html style="color-scheme: light dark"><body style="margin: 0"><pre id="found"></pre>
{frames}
<script>
const found = {{}};
addEventListener("message", event => {{
  found[event.data.page] = event.data;
  document.getElementById("found").textContent = JSON.stringify(found);
}});
</script></body></html>"""
_FRAME = '<iframe src="{source}" style="border: 0; width: {width}px; height: 900px"></iframe>'

_LISTEN = "<script>window.broken = []; addEventListener('error', event => window.broken.push(event.message));</script>"
_LOOK = """<script>{axe}</script><script>
(async () => {{
  const inside = (part, whole) => part.left >= whole.left - 2 && part.right <= whole.right + 2
    && part.top >= whole.top - 2 && part.bottom <= whole.bottom + 2;
  const page = document.documentElement, pictures = [...document.querySelectorAll("svg")];
  const boxes = pictures.map(picture => picture.getBoundingClientRect());
  const texts = pictures.flatMap(picture => [...picture.querySelectorAll("text")].map(text => [picture, text]));
  const axe_found = await axe.run(document, {{resultTypes: ["violations"]}});
  parent.postMessage({{
    page: {page!r},
    width: innerWidth,
    dark: matchMedia("(prefers-color-scheme: dark)").matches,
    background: getComputedStyle(document.body).backgroundColor,
    errors: window.broken,
    overflow: page.scrollWidth - page.clientWidth,
    pictures: boxes.map(box => [box.left, box.right, box.width, box.height]),
    cut: texts.filter(([picture, text]) => !inside(text.getBoundingClientRect(), picture.getBoundingClientRect()))
      .map(([_, text]) => text.textContent),
    violations: axe_found.violations.map(v => [v.impact, v.id, v.nodes.length, v.nodes[0].html.slice(0, 120)]),
  }}, "*");
}})();
</script>"""


def looked_at(pages: Mapping[str, str], folder: Path, *, widths: tuple[int, ...], dark: bool) -> dict[str, Any]:
    """Open copies of pages at several widths; name and width to what was found, and "console" to what was logged."""
    frames = []
    for name, page in pages.items():
        for width in widths:
            key = f"{name} {width}"
            copy = folder / f"{len(frames)}.html"
            look = _LOOK.format(axe=AXE.read_text(encoding="utf-8"), page=key)
            copy.write_text(
                page.replace("<head>", f"<head>{_LISTEN}", 1).replace("</body>", f"{look}</body>", 1), encoding="utf-8"
            )
            frames.append(_FRAME.format(source=html.escape(copy.as_uri()), width=width))
    outer = folder / "frames.html"
    outer.write_text(_FRAMES.format(frames="".join(frames)), encoding="utf-8")
    done = subprocess.run(
        [
            str(CHROMIUM),
            *("--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"),
            f"--user-data-dir={folder / 'profile'}",
            f"--window-size={max(widths) + 40},1000",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            "--virtual-time-budget=20000",
            outer.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"HOME": str(folder)},
    )
    reported = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, flags=re.DOTALL)
    assert reported is not None, done.stderr
    found: dict[str, Any] = json.loads(html.unescape(reported[1]) or "{}")
    found["console"] = re.findall(r"CONSOLE.*", done.stderr)
    return found


def complaints(found: Mapping[str, Any]) -> list[str]:
    """Everything that is wrong with one page at one width."""
    wrong = [f"error: {error}" for error in found["errors"]]
    if found["overflow"] > 0:
        wrong.append(f"the page is {found['overflow']} pixels too wide")
    for left, right, width, height in found["pictures"]:
        if width < 100 or height < 50 or left < 0 or right > found["width"] + 1:
            wrong.append(f"a picture of {width} by {height} pixels from {left} to {right}")
    wrong += [f"a label is cut: {text}" for text in found["cut"]]
    return wrong + [f"{v[0]}: {v[1]}, {v[3]}" for v in found["violations"] if v[0] in ("serious", "critical")]

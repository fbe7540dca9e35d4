"""A page in a real browser: what it looks like at a width, in a colour scheme, and what axe-core reports.

Pages are opened from files, one after the other, in a frame. The outer page sends the results to a local server once
the last frame has reported. No step has a time limit of its own: a busy machine only makes the whole slower.
"""

import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

AXE = Path(__file__).parents[2] / ".browser" / "axe.min.js"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE = 1800  # seconds for all pages together; half a minute on an idle machine

needs_browser = pytest.mark.skipif(
    CHROMIUM is None or not AXE.exists(), reason="no Chromium or no axe-core: make .browser/.ready installs both"
)

# A window cannot be narrower than 500 pixels; a frame in it can. There is one frame at a time: a browser may skip the
# layout of frames that are not visible, and axe-core in a dozen frames at once takes minutes on a busy machine.
_FRAMES = """<!DOCTYPE html><html style="color-scheme: light dark"><body style="margin: 0"><script>
const frames = {frames}, found = {{}};
function next() {{
  if (!frames.length) {{
    fetch("{server}", {{method: "POST", mode: "no-cors", body: JSON.stringify(found)}});
    return;
  }}
  const [source, width] = frames.shift(), frame = document.createElement("iframe");
  frame.style = `border: 0; width: ${{width}}px; height: 900px`;
  frame.src = source;
  document.body.replaceChildren(frame);
}}
addEventListener("message", event => {{ found[event.data.page] = event.data; next(); }});
next();
</script></body></html>"""

_LISTEN = "<script>window.broken = []; addEventListener('error', event => window.broken.push(event.message));</script>"
_LOOK = """<script>{axe}</script><script>
addEventListener("load", async () => {{
  const inside = (part, whole) => part.left >= whole.left - 2 && part.right <= whole.right + 2
    && part.top >= whole.top - 2 && part.bottom <= whole.bottom + 2;
  // axe-core logs a message if loading of assets takes longer than its timeout, ten seconds by default.
  const patient = {{assets: ["cssom", "media"], timeout: {milliseconds}}};
  const axe_found = await axe.run(document, {{resultTypes: ["violations"], preload: patient}});
  const page = document.documentElement, pictures = [...document.querySelectorAll("svg")];
  const boxes = pictures.map(picture => picture.getBoundingClientRect());
  const texts = pictures.flatMap(picture => [...picture.querySelectorAll("text")].map(text => [picture, text]));
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
}});
</script>"""


class _Results(ThreadingHTTPServer):
    """Receives the results of the outer page."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receiver)
        self.received = threading.Event()
        self.body = "{}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"


class _Receiver(BaseHTTPRequestHandler):
    server: _Results

    def do_POST(self) -> None:
        self.server.body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.send_response(204)
        self.end_headers()
        self.server.received.set()

    def log_message(self, *_: Any) -> None:
        pass


def looked_at(pages: Mapping[str, str], folder: Path, *, widths: tuple[int, ...], dark: bool) -> dict[str, Any]:
    """Open copies of pages at several widths; returns results by name and width, and "console" with what was logged."""
    frames = []
    for name, page in pages.items():
        for width in widths:
            copy = folder / f"{len(frames)}.html"
            axe = AXE.read_text(encoding="utf-8")
            look = _LOOK.format(axe=axe, page=f"{name} {width}", milliseconds=1000 * PATIENCE)
            copy.write_text(
                page.replace("<head>", f"<head>{_LISTEN}", 1).replace("</body>", f"{look}</body>", 1), encoding="utf-8"
            )
            frames.append((copy.as_uri(), width))
    outer, log = folder / "frames.html", folder / "chromium.log"
    with _Results() as server:
        outer.write_text(_FRAMES.format(frames=json.dumps(frames), server=server.url), encoding="utf-8")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        _browse(outer, folder, log, server.received, width=max(widths) + 40, dark=dark)
        server.shutdown()
    logged = log.read_text(encoding="utf-8", errors="replace")
    assert server.received.is_set(), f"no results after {PATIENCE} s:\n{logged}"
    found: dict[str, Any] = json.loads(server.body)
    found["console"] = re.findall(r"CONSOLE.*", logged)
    return found


def _browse(outer: Path, folder: Path, log: Path, received: threading.Event, *, width: int, dark: bool) -> None:
    """Run Chromium until results are received, it ends by itself, or patience does."""
    command = [
        str(CHROMIUM),
        *("--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--no-first-run"),
        *("--no-proxy-server", "--disable-dev-shm-usage"),
        # A busy machine must not look like a page that hangs.
        *("--disable-hang-monitor", "--disable-background-timer-throttling", "--disable-renderer-backgrounding"),
        f"--user-data-dir={folder / 'profile'}",
        f"--window-size={width},1000",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}",
        outer.as_uri(),
    ]
    with log.open("w") as file:
        browser = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=file, env=os.environ | {"HOME": str(folder)}
        )
        try:
            for _ in range(PATIENCE):
                if received.wait(1) or browser.poll() is not None:
                    break
        finally:
            browser.terminate()
            try:
                browser.wait(60)
            except subprocess.TimeoutExpired:
                browser.kill()
                browser.wait(PATIENCE)


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

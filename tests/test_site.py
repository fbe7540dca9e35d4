"""The site as it is built: strict, without anything from elsewhere, and searched in a page that is opened as a file."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from browser import CHROMIUM

pytest.importorskip("properdocs")
ROOT = Path(__file__).parent.parent


def build(config, target):
    command = [sys.executable, "-m", "properdocs", "build", "--strict", "--config-file", config, "--site-dir", target]
    return subprocess.run(command, cwd=config.parent, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    target = tmp_path_factory.mktemp("site")
    done = build(ROOT / "properdocs.yml", target)
    assert done.returncode == 0, done.stderr
    return target


def settings(name):
    """One top-level entry of the site's configuration, as text."""
    (found,) = re.findall(rf"^{name}:\n(?: .*\n)+", (ROOT / "properdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    return found


BROKEN = ["gone.md", "#gone", "other.md#gone", "/other.md", "other"]


@pytest.mark.parametrize("links", [["#here", "other.md", "other.md#there"], BROKEN], ids=["sound", "broken"])
def test_broken_links_and_anchors_fail_the_build(links, tmp_path):
    (tmp_path / "docs").mkdir()
    listed = "\n".join(f"- [a link]({link})" for link in links)
    (tmp_path / "docs" / "index.md").write_text(f"# Here\n\n{listed}\n", encoding="utf-8")
    (tmp_path / "docs" / "other.md").write_text("# Other\n\n## There\n", encoding="utf-8")
    config = tmp_path / "properdocs.yml"
    config.write_text(f"site_name: a site\ntheme: materialx\n{settings('validation')}", encoding="utf-8")
    done = build(config, tmp_path / "site")
    warned = [link for link in links if re.search(rf"WARNING.*'{re.escape(link)}'", done.stderr)]
    assert warned == (BROKEN if links is BROKEN else []), done.stderr
    assert (done.returncode != 0) == (links is BROKEN)


@pytest.mark.slow
def test_no_page_loads_anything_from_elsewhere(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 50
    loaded = r"<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>"
    assert [found for page in pages for found in re.findall(loaded, page.read_text(encoding="utf-8"))] == []


_ASK = """<script>addEventListener("load", () => setTimeout(() => {
  document.getElementById("__search").click();
  const query = document.querySelector("[data-md-component=search-query]");
  query.focus();
  query.value = "hypergradient";
  query.dispatchEvent(new Event("input", {bubbles: true}));
  query.dispatchEvent(new Event("keyup", {bubbles: true}));
}, 1000));</script></body>"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: make .browser/.ready installs it")
def test_search_works_in_a_page_that_is_opened_as_a_file(site, tmp_path):
    asking = site / "results" / "asking.html"  # below the root: paths to the index and the worker are relative
    asking.write_text((site / "results" / "leak.html").read_text(encoding="utf-8").replace("</body>", _ASK), "utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom"]
    done = subprocess.run(
        [str(CHROMIUM), *options, f"--user-data-dir={tmp_path / 'profile'}", asking.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"HOME": str(tmp_path)},
    )
    found = re.findall(r'class="md-search-result__item"><a href="([^"#?]+)', done.stdout)
    assert (site / "results" / "penalty.html").as_uri() in found

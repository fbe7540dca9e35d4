"""Draw docs/report.png: two parts of a real report, of the README's run on the patients of examples/data.

python benchmarks/report_picture.py     (a minute; needs Chromium)
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
WIDTH, HEIGHT = 1400, 800
TUNE = ["tune", "patients.csv", "--target", "ill", "--schema", "patients.toml", "--epsilon", "1", "--delta", "1e-6"]
# The same report twice: from its top, and from the effects of columns.
PAGE = """<!DOCTYPE html><body style="margin: 0; display: flex; background: white">
<iframe src="report.html" scrolling="no" style="border: 0; width: 50%; height: {height}px"></iframe>
<iframe src="report.html#shapes" scrolling="no" style="border: 0; width: 50%; height: {height}px"></iframe></body>
"""


def main() -> None:
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        sys.exit("needs Chromium: make .browser/.ready installs it")
    with tempfile.TemporaryDirectory() as temporary:
        run = Path(temporary) / "run"
        tune = [sys.executable, "-m", "dpbilevel", *TUNE, "--out", str(run)]
        subprocess.run(tune, cwd=ROOT / "examples" / "data", check=True)
        (run / "page.html").write_text(PAGE.format(height=HEIGHT), encoding="utf-8")
        picture = ROOT / "docs" / "report.png"
        options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--allow-file-access-from-files"]
        options += [f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={picture}", (run / "page.html").as_uri()]
        subprocess.run([browser, *options], check=True, capture_output=True)
        print(f"wrote {picture.relative_to(ROOT)}")


if __name__ == "__main__":
    main()

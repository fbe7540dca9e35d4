"""Run the pages of the gallery; each writes its picture beside itself.

    python benchmarks/gallery.py [PAGE ...]     (a minute on two cores; writes docs/gallery/*.svg)

A page is a notebook: its blocks of Python run in order and share their names. The tests run the same blocks, compare
the printed numbers, and compare the words in the pictures with the committed ones.
"""

import argparse
import contextlib
import doctest
import re
import sys
import time
import warnings
from pathlib import Path

GALLERY = Path(__file__).parents[1] / "docs" / "gallery"


def run(page: Path) -> bool:
    """Run a page in the current folder; False if a number differs from what the page shows."""
    names: dict[str, object] = {"__name__": "page"}
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
        if block.startswith(">>>"):
            test = doctest.DocTestParser().get_doctest(block, names, page.name, str(page), 0)
            runner.run(test, clear_globs=False)
            names = test.globs
        else:
            exec(compile(block, str(page), "exec"), names)
    return not runner.failures


def main(pages: list[str]) -> None:
    warnings.simplefilter("ignore")  # seeds are fixed, which every page says
    unlike = []
    for page in sorted(GALLERY.glob("*.md")):
        if page.stem == "index" or (pages and page.stem not in pages):
            continue
        started = time.process_time()
        with contextlib.chdir(GALLERY):
            if not run(page):
                unlike.append(page.stem)
        print(f"{page.stem}: {time.process_time() - started:.1f} s of processor time")
    if unlike:
        sys.exit(f"other numbers than on the page: {', '.join(unlike)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", help="names of pages; all of them by default")
    main(parser.parse_args().pages)

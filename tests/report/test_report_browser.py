"""Reports in a real browser: nothing broken, clipped or hard to read, on wide and narrow screens, light and dark."""

import functools

import pytest
from support.browser import complaints, looked_at, needs_browser
from support.report_data import NASTY, additive, linear, review, scores, searched

from dpbilevel.report.html import html_report
from dpbilevel.report.review import Review

WIDTHS = (1280, 390)
pytestmark = [needs_browser, pytest.mark.slow]


@functools.cache
def pages():
    classes = linear(60, ("cat", "dog", "horse", "a class with a long name"))
    shown = {kind: html_report(review(kind)) for kind in ("private", "caveats", "seeded", "nasty")}
    shown["many"] = html_report(review("many", model=classes))
    facts = {"data": "adult.csv", "ledger": "entry 3 of the ledger of the data set 'visits'"}
    shown["shapes"] = html_report(review(model=additive(), evaluation=scores(), facts=facts))
    shown["nasty shapes"] = html_report(review("nasty", model=additive(("no", NASTY, "perhaps"), nasty=True)))
    shown["bare"] = html_report(Review(solution=searched("grid")))
    return shown


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_reports_look_right(dark, tmp_path):
    shown = pages()
    found = looked_at(shown, tmp_path, widths=WIDTHS, dark=dark)
    assert found.pop("console") == []
    assert len(found) == len(WIDTHS) * len(shown)
    for name, page in found.items():
        assert page["width"] == int(name.rpartition(" ")[2])
        assert page["dark"] is dark
        assert page["background"] == ("rgb(21, 24, 29)" if dark else "rgb(255, 255, 255)")
        assert len(page["pictures"]) >= 2
        assert complaints(page) == [], name


BROKEN = {
    "too pale": ("<h1>", '<h1 style="color: #777; background: #888">'),
    "no words for a picture": ("<main>", '<main><img src="data:image/gif;base64,R0lGODlhAQABAAAAACw=">'),
    "no language": ('<html lang="en">', "<html>"),
    "too wide": ("<main>", '<main><div style="width: 2000px">wide</div>'),
    "no picture": ("figure svg {", "figure svg { display: none !important;"),
    "a script that fails": ("<main>", "<main><script>nothing.at.all</script>"),
    "a label outside": ("<text ", '<text dx="4000" '),
}


def test_the_checks_see_what_is_broken(tmp_path):
    whole = html_report(review())
    mutants = {name: whole.replace(before, after) for name, (before, after) in BROKEN.items()}
    assert all(mutant != whole for mutant in mutants.values())
    found = looked_at(mutants, tmp_path, widths=(390,), dark=False)
    assert found.pop("console")
    assert [name for name, page in found.items() if not complaints(page)] == []
    assert len(found) == len(BROKEN)

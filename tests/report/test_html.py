"""The report as one page: self-contained, escaped, the same for the same review, with prominent warnings."""

import functools
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
from support.report_data import KINDS, NASTY, linear, made, review, searched, solution, with_privacy

import dpbilevel as dpb
from dpbilevel.privacy.accounting import Charge
from dpbilevel.report.html import html_report
from dpbilevel.report.review import Review

VOID_ELEMENTS = {"meta", "br", "hr", "img", "link", "input"}


@functools.cache
def page_of(kind):
    """Drawing its pictures takes most of the time of a page."""
    return html_report(review(kind))


class Reader(HTMLParser):
    """Elements, ids and visible text of a page; fails where tags do not match."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.attributes, self.words = [], [], [], []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in VOID_ELEMENTS:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_is_sound_and_needs_nothing_else(kind):
    page = page_of(kind)
    read = Reader(page)
    assert page.startswith("<!DOCTYPE html>")
    assert {"main", "h1", "h2", "title", "table", "caption"} <= set(read.tags)
    assert read.tags.count("h1") == 1
    assert not {"script", "link", "img", "iframe", "object", "embed"} & set(read.tags)
    names = [name for name, _ in read.attributes]
    assert not {"src", "onload", "onclick", "onerror"} & set(names)
    assert all(value.startswith("#") for name, value in read.attributes if name == "href")
    assert "http" not in page
    assert "@import" not in page
    ids = [value for name, value in read.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    referred = [part for name, value in read.attributes if name.startswith("aria-") for part in value.split()]
    labels = [part for part in referred if part.endswith(("-title", "-desc"))]
    assert set(labels) <= set(ids)


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_says_the_guarantee(kind):
    whole = solution(kind)
    text = Reader(page_of(kind)).text
    if whole.privacy.budget.is_private:
        assert whole.privacy.stated() in text
        assert "replace-one" in text
        assert "not a person" in text
    assert f"dpbilevel {whole.version}" in text
    assert ("NOT PRIVATE" in text) == whole.privacy.void
    for caveat in whole.privacy.caveats:
        assert caveat in text
    for name, (_, reason) in whole.parameters.items():
        assert name in text
        assert reason in text


@pytest.mark.parametrize("ratio", [0.0101, 0.0107, 0.0113, 0.0119])
def test_no_epsilon_is_stated_too_small(ratio):
    charges = {"lower": (Charge("training", "lower", ratio, 200, dpb.FullBatch(), 2000, clip=1.0),)}
    whole = with_privacy(solution("one"), charges=charges)
    page = html_report(Review(solution=whole))
    stated = float(re.search(r"<dt>epsilon</dt><dd>([\d.]+)</dd>", page)[1])
    assert whole.privacy.epsilon() * (1 - 1e-9) <= stated <= whole.privacy.epsilon() * 1.002


def test_a_run_that_is_not_sound_looks_different():
    classes = {kind: re.findall(r'class="(banner \w+|guarantee \w+)"', page_of(kind)) for kind in KINDS}
    assert classes["private"] == ["guarantee good"]
    assert classes["caveats"] == ["banner fair", "guarantee fair"]
    assert classes["seeded"] == classes["infinite"] == ["banner bad", "guarantee bad"]
    assert "epsilon, if the noise were secret" in page_of("seeded")
    assert "epsilon, if the noise were secret" not in page_of("private")


def test_everything_that_comes_in_is_escaped():
    page = page_of("nasty")
    assert "<script" not in page
    assert "\x00" not in page
    assert "\x1b" not in page
    read = Reader(page)
    assert NASTY.partition(" ")[0] in read.text, "it is shown, as text"
    plain = Reader(page_of("private"))
    assert read.tags.count("script") == plain.tags.count("script") == 0


def test_the_same_review_is_the_same_page():
    assert html_report(review()) == html_report(review())


def test_pictures_are_text_in_the_colours_of_the_page_with_words_for_who_cannot_see_them():
    page = page_of("many")
    pictures = [ElementTree.fromstring(found) for found in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)]
    assert len(pictures) == 3
    for picture in pictures:
        assert picture.get("role") == "img"
        assert picture.find("title").text
        assert len(picture.find("desc").text) > 40
        assert picture.get("viewBox")
        assert picture.get("width") is None
        assert picture.findall(".//text")
        assert "font-family" not in ElementTree.tostring(picture, encoding="unicode")
        assert picture.find(".//style") is None
    assert "currentColor" in page
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page


def test_coefficients_are_sorted_and_the_rest_is_folded():
    page = html_report(review(model=linear(50)))
    shown, folded = page.split("<details>")
    names = re.findall(r'<th scope="row">(column \d+)</th>', page)
    sizes = dict(zip(linear(50).columns, np.abs(linear(50).coefficients[0]), strict=True))
    assert names == sorted(sizes, key=lambda name: -sizes[name])
    assert len(re.findall(r"<th scope=\"row\">column \d+</th>", shown)) == 20
    assert "30 more" in folded


def test_a_model_of_several_classes_has_a_column_for_each():
    page = html_report(review(model=linear(4, ("cat", "dog", "<b>"))))
    heads = re.findall(r'<th class="number" scope="col">(.*?)</th>', page)
    assert {"cat", "dog", "&lt;b&gt;"} <= set(heads)


@pytest.mark.parametrize("kind", ["grid", "random"])
def test_baselines_have_reports(kind):
    text = Reader(html_report(Review(solution=searched(kind)))).text
    assert "smallest" in text
    assert "score" in text
    assert ("The method releases no trajectory of x" in text) == (kind == "random")


def test_a_solution_that_released_nothing_odd_numbers_or_nothing_at_all_has_a_report():
    empty = made(privacy=dpb.Privacy({}, dpb.Budget(1.0, 1e-6)), parameters={}, history={}, sizes={})
    assert "No record was read" in html_report(Review(solution=empty))
    odd = made(x=np.array([np.nan, np.inf, 800.0]), history={"x": np.full((3, 3), np.nan)})
    assert "infinite" in html_report(Review(solution=odd))


def test_a_large_model_is_counted_and_not_listed():
    page = html_report(Review(solution=made(y=np.zeros((300, 400)))))
    assert "120,000 released numbers (y: 300 × 400)" in page
    assert len(page) < 100_000

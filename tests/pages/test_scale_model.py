"""The model of growth: what it says of measured lines, of the library's releases and of the page."""

import re
import sys
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))
import scale_model  # noqa: E402
from scale_model import CORES, FACTOR, H200, Load  # noqa: E402

import dpbilevel as dpb  # noqa: E402
from dpbilevel.estimators import DPLogisticRegressionCV  # noqa: E402
from dpbilevel.records import answer_dimensions  # noqa: E402


def test_the_page_is_what_the_script_writes():
    assert scale_model.PAGE.read_text(encoding="utf-8") == scale_model.page()


@pytest.mark.parametrize(("line", "seconds", "model"), scale_model.checks())
def test_measured_lines_are_predicted(line, seconds, model):
    assert 1 / FACTOR < model / seconds < FACTOR


def test_measured_lines_are_those_of_the_page_of_speed():
    text = (ROOT / "docs" / "results" / "speed.md").read_text(encoding="utf-8")
    assert "8,000,000 x 256: a median of 3.61 ms" in text
    for line, seconds, _ in scale_model.checks()[:-1]:
        (median,) = re.findall(rf"^\| {line} \| (?:library|private) \| (\S+) \|", text, re.MULTILINE)
        assert float(median) == seconds
    assert "| step, linear, 50000 x 1000 | private | 0.1174 |" in text


def test_entries_are_those_of_answers():
    columns, found = 7, {}
    for settings in ({}, {"method": dpb.Tracking()}):
        model = DPLogisticRegressionCV(epsilon=1.0, data_norm=1.0, classes=[0, 1], **settings)
        planned = model.plan(rows=100_000, columns=columns)
        for part in planned.parts:
            entries = answer_dimensions(part, planned.sizes, jax.eval_shape(part.start, *planned.start))
            found |= {release.name: number for release, number in entries.items()}
    expected = scale_model.dimensions(columns)
    assert found["training"] == expected["training"]
    assert found["second moments"] == expected["second moments"]
    assert found["training pass"] == expected["training pass of tracking"]
    assert found["validation pass"] == expected["validation pass of tracking"]


def test_what_is_sent_does_not_depend_on_rows():
    one, other = (scale_model.row_of(Load(rows, 256, 8), H200) for rows in (10**6, 10**9))
    places = [
        place for place, name in enumerate(scale_model.HEADER) if name in {"received", "merge", "merge of moments"}
    ]
    assert [one[place] for place in places] == [other[place] for place in places]
    assert scale_model.received(100, 4) == 3 * 100 * 16
    assert scale_model.sending(100, 1, H200) == 0


def test_more_devices_read_less_and_fewer_reads_take_less():
    assert scale_model.reading(Load(10**9, 256, 8), H200) == pytest.approx(
        scale_model.reading(Load(10**9, 256), H200) / 8
    )
    assert scale_model.reading(Load(8_000_000, 256, reads=1), H200) == pytest.approx(2.05e-3, rel=0.01)


def test_a_line_is_printed(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["scale_model.py", "--rows", "1e6", "--columns", "100", "--machine", CORES.name])
    scale_model.main()
    assert "1 x 2 cores" in capsys.readouterr().out

"""Commands that the README and the documentation show run as they stand, and so does the demonstration."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def test_the_four_commands_of_the_readme(tmp_path):
    """Exactly what the README shows, run where it says, in a copy."""
    text = (REPOSITORY / "README.md").read_text()
    block = re.search(r"```console\n(\$ cd examples/data\n.*?)```", text, re.DOTALL)
    assert block is not None
    lines = [line[2:].split("  #")[0].strip() for line in block[1].splitlines() if line.startswith("$ ")]
    assert lines[0] == "cd examples/data"
    assert [line.split()[1] for line in lines[1:]] == ["schema", "tune", "report", "predict"]
    shutil.copytree(REPOSITORY / "examples" / "data", tmp_path / "data")
    script = Path(sys.executable).with_name("dpbilevel")
    assert script.exists(), "the command is not installed"
    path = f"{script.parent}{os.pathsep}{os.environ['PATH']}"
    for line in lines[1:]:
        ended = subprocess.run(
            line,
            shell=True,
            cwd=tmp_path / "data",
            capture_output=True,
            text=True,
            env={**os.environ, "PATH": path},
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
    predictions = (tmp_path / "data" / "predictions.csv").read_text().splitlines()
    assert len(predictions) == 201


@pytest.mark.slow
def test_the_commands_of_the_documentation(command, tmp_path, monkeypatch):
    shutil.copytree(REPOSITORY / "examples" / "data", tmp_path / "data")
    monkeypatch.chdir(tmp_path / "data")
    text = (REPOSITORY / "docs" / "command_line.md").read_text()
    commands = [line[2:] for line in text.splitlines() if line.startswith("$ ")]
    assert len(commands) == 11
    for line in commands:
        program, *arguments = shlex.split(line)
        assert program == "dpbilevel"
        code, _, stderr = command(*arguments)
        assert code == 0, (line, stderr)


def test_the_demonstration_at_small_size(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, stdout, _ = command("demo", "--rows", 2000)
    assert code == 0
    for model in ("all reports, equal weights", "verified flights only", "tuned weights"):
        assert re.search(rf"{model} +0\.\d{{3}} ", stdout)
    assert re.search(r"^B +swapped +[01]\.\d{3}$", stdout, re.MULTILINE)
    assert stdout.rstrip().endswith(f"Report: {Path('flights-run') / 'report.html'}")
    code, _, stderr = command("demo", "--rows", 2000)
    assert code == 2
    assert "pass --force" in stderr

"""A small file with its schema, for tests of the command line. Cells that must never be printed are easy to find."""

import csv
from pathlib import Path

import numpy as np

SECRET = "Zanzibar"  # stands for a private word
NUMBER = 987654.25  # stands for a private number

SCHEMA = """\
format = "dpbilevel.schema/1"

[columns.age]
range = [0, 100]

[columns.town]
categories = ["Oslo", "Rome", "other"]
group = "place"

[columns.id]
ignore = true

[columns.clinic]
categories = ["east", "west"]
group = "place"

[columns.paid]
classes = ["no", "yes"]

[columns.cost]
range = [0, 10]
"""


def people(rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    draws = np.random.default_rng(seed)
    age = draws.uniform(0, 100, rows).round(1)
    return {
        "age": age,
        "town": draws.choice(["Oslo", "Rome", SECRET], rows),
        "id": np.arange(rows),
        "clinic": draws.choice(["east", "west"], rows),
        "paid": np.where(age > 50, "yes", "no"),
        "cost": (age / 10).round(2),
    }


def write_people(folder: Path, rows: int = 400, name: str = "people.csv", seed: int = 0) -> tuple[Path, Path]:
    """The paths of a CSV file and of its schema."""
    table = people(rows, seed)
    with (folder / name).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))
    (folder / "schema.toml").write_text(SCHEMA, encoding="utf-8")
    return folder / name, folder / "schema.toml"

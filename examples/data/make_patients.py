"""Make patients.csv, new_patients.csv and held_out_patients.csv: invented people, for the commands of the pages.

    python examples/data/make_patients.py

Illness follows age, blood pressure and smoking. The clinic "south" mixed its labels up.
"""

import csv
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent


def patients(rows: int, seed: int) -> dict[str, np.ndarray]:
    draws = np.random.default_rng(seed)
    age = draws.integers(18, 91, rows)
    sex = draws.choice(["F", "M"], rows)
    smoker = draws.choice(["never", "former", "yes"], rows, p=[0.55, 0.25, 0.2])
    pressure = np.round(draws.normal(105 + 0.4 * age, 12)).astype(int)
    clinic = draws.choice(["north", "east", "south"], rows)
    score = 0.08 * (age - 55) + 0.05 * (pressure - 130) + 1.5 * (smoker == "yes") + 0.4 * (smoker == "former")
    ill = score + draws.logistic(size=rows) > 0.5
    recorded = np.where(clinic == "south", draws.random(rows) < 0.5, ill)
    return {
        "age": age,
        "sex": sex,
        "smoker": smoker,
        "blood_pressure": pressure,
        "clinic": clinic,
        "ill": np.where(recorded, "yes", "no"),
    }


def main() -> None:
    files = (("patients.csv", 6000, 0), ("new_patients.csv", 200, 1), ("held_out_patients.csv", 2000, 2))
    for name, rows, seed in files:
        table = patients(rows, seed)
        if name.startswith("new"):
            del table["ill"]
        with (FOLDER / name).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(table)
            writer.writerows(zip(*(values.tolist() for values in table.values()), strict=True))


if __name__ == "__main__":
    main()

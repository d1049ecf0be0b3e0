"""Small classifications: our classifier compared with two common alternatives.

ours                  ``sdebnn.SDEBNNClassifier()`` with its defaults
logistic regression   scikit-learn's with its defaults, on standardised columns
random forest         scikit-learn's, 500 trees

The tables are three of scikit-learn's own and two made by it: ``make_classification`` (600 rows, 10 columns of which 5
are informative, 3 classes, 5 % of the labels wrong) and ``make_moons`` (400 rows, noise 0.25). A split holds out 30 %
of the rows, with the same share of each class. A probability below 10⁻⁶ counts as 10⁻⁶ in the log loss, since forests
predict zeros. Numbers are means over splits, and their standard errors.

    python benchmarks/classification_tables.py [--splits 3] [--json FILE]
"""

import argparse
import time
from pathlib import Path

import numpy as np
import record
from sklearn import datasets
from sklearn.base import ClassifierMixin
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import sdebnn

MIN_PROBABILITY = 1e-6
TABLES = {
    "breast cancer": lambda: datasets.load_breast_cancer(return_X_y=True),
    "wine": lambda: datasets.load_wine(return_X_y=True),
    "iris": lambda: datasets.load_iris(return_X_y=True),
    "make_classification": lambda: datasets.make_classification(
        600, 10, n_informative=5, n_classes=3, flip_y=0.05, random_state=0
    ),
    "make_moons": lambda: datasets.make_moons(400, noise=0.25, random_state=0),
}
SYSTEMS = {
    "ours": lambda seed: sdebnn.SDEBNNClassifier(random_state=seed),
    "logistic regression": lambda seed: make_pipeline(StandardScaler(), LogisticRegression()),
    "random forest": lambda seed: RandomForestClassifier(500, random_state=seed),
}


def scores(model: ClassifierMixin, x: np.ndarray, y: np.ndarray, seed: int) -> dict[str, float]:
    known, new, known_y, new_y = train_test_split(x, y, test_size=0.3, stratify=y, random_state=seed)
    clock = time.perf_counter()
    model.fit(known, known_y)
    seconds = time.perf_counter() - clock
    proba = model.predict_proba(new)
    of_truth = proba[np.arange(len(new)), new_y]  # labels are 0, 1, ...
    return {
        "log_loss": -float(np.log(np.maximum(of_truth, MIN_PROBABILITY)).mean()),
        "accuracy": float(np.mean(proba.argmax(1) == new_y)),
        "seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--json", type=Path, default=Path(__file__).with_name("classification_tables.json"))
    chosen = parser.parse_args()
    table = []
    for name, load in TABLES.items():
        for system, make in SYSTEMS.items():
            each = [scores(make(split), *load(), split) for split in range(chosen.splits)]
            line: dict[str, object] = {"table": name, "system": system, "splits": chosen.splits}
            for score in each[0]:
                values = np.array([one[score] for one in each])
                line[score] = [
                    round(float(number), 4) for number in (values.mean(), values.std(ddof=1) / len(values) ** 0.5)
                ]
            table.append(line)
            print(line, flush=True)
    record.write(chosen.json, "python benchmarks/classification_tables.py", table=table)


if __name__ == "__main__":
    main()

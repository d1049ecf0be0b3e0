"""The sections of a report: what was trained, how it did and how sure that is, and what it must not be trusted with."""

from typing import Any

import numpy as np

from sdebnn.metrics import Estimate
from sdebnn.outcomes import ClassOutcomes
from sdebnn.reports import drawing
from sdebnn.reports.comparing import seed_groups
from sdebnn.reports.page import Cell, Section, escaped, figure, figures, paragraph, table
from sdebnn.reports.subjects import Subject

# What each score means, and whether more of it is better (None: neither).
MEANING: dict[str, tuple[str, bool | None]] = {
    "accuracy": ("share of test examples whose most probable class is the true one", True),
    "nll": ("mean of -log p(truth), in nats; a p of 0 counts as 1e-300", False),
    "brier": ("squared distance between the forecast and the truth", False),
    "ece10": ("expected calibration error, 10 bins of equal width", False),
    "ece15": ("expected calibration error, 15 bins of equal width", False),
    "ece15_mass": ("the same with equally many examples in each bin", False),
    "classwise_ece15": ("calibration error of each class's probability, averaged", False),
    "aurc": ("mean error rate over all shares of the most certain", False),
    "accuracy_of_90": ("accuracy if the least certain tenth is left unanswered", True),
    "auroc_of_mistakes": ("chance that a mistake is less certain than a right answer", True),
    "entropy": ("mean entropy of the forecast, in nats", None),
    "entropy_reducible": ("the part of it that more data would reduce", None),
    "rmse": ("root mean squared error of the mean, in the units of the target", False),
    "crps": ("continuous ranked probability score, in the units of the target", False),
    "coverage_95": ("share of targets inside their 95 % interval", None),
    "width_95": ("mean width of that interval", False),
    "interval_score_95": ("its width, plus a charge for what misses it", False),
    "std": ("root mean variance of the forecast", None),
    "std_reducible": ("the part of it that more data would reduce", None),
}
SHARES = {"accuracy", "ece10", "ece15", "ece15_mass", "classwise_ece15", "accuracy_of_90", "coverage_95"}


def shown_score(name: str, value: float) -> str:
    """A score as text: shares in per cent."""
    return f"{100 * value:.2f} %" if name in SHARES else f"{value:.4g}"


def _cell(name: str, found: Estimate | None) -> Cell:
    if found is None:
        return Cell("")
    return Cell(shown_score(name, found.value), found.value, _interval(name, found))


def how_it_did(subjects: list[Subject]) -> Section:
    """The scores of all runs beside each other, each with its interval."""
    names = [name for name in MEANING if any(name in each.scores for each in subjects)]
    rows = [
        [name, *(_cell(name, each.scores.get(name)) for each in subjects), Cell(MEANING[name][0]), Cell(_better(name))]
        for name in names
    ]
    sizes = ", ".join(f"{_examples(each)} of {each.name}" for each in subjects)
    words = (
        f"On test examples that training did not see ({sizes}). In brackets: 95 % intervals by resampling the test "
        "examples, and exact ones of accuracy and coverage. They say how much the score would change with other test "
        "examples, and not how much with another training. Where chance can only raise a score, as with a calibration "
        "error near zero, the interval lies above."
    )
    heads = ["score", *(each.name for each in subjects), "what it is", "better"]
    body = "".join(paragraph(summary(each), "note") for each in subjects) + paragraph(words)
    return Section("How it did, and how sure that is", body + table("Scores on the test part", heads, rows))


def summary(subject: Subject) -> str:
    """How good the forecasts are, and whether they are as sure as they should be, in a sentence or two."""
    outcomes, scores, count = subject.outcomes, subject.scores, f"{_examples(subject):,} test examples"
    if isinstance(outcomes, ClassOutcomes):
        right, sure = scores["accuracy"], float(outcomes.probs.max(-1).mean())
        words = (
            f"{subject.name} is right about {_with_interval('accuracy', right)} of {count}, and sure of its answers "
        )
        words += f"to {100 * sure:.1f} % in the mean: "
        return words + _judged(sure, right, "it is too sure of itself", "it could be surer", "that fits")
    inside = scores["coverage_95"]
    words = f"The 95 % intervals of {subject.name} contain {_with_interval('coverage_95', inside)} of {count}: "
    words += _judged(0.95, inside, "they are too narrow", "they are too wide", "that fits")
    return f"{words} Its mean misses by {_with_interval('rmse', scores['rmse'])} (root mean square)."


def _judged(claimed: float, found: Estimate, above: str, below: str, fits: str) -> str:
    """What it means that a share was claimed, and another one found."""
    if found.upper - found.lower > 0.5:
        return f"{fits}, as far as so few examples can tell."
    return f"{above if claimed > found.upper else below if claimed < found.lower else fits}."


def _with_interval(name: str, found: Estimate) -> str:
    return f"{shown_score(name, found.value)} {_interval(name, found)}"


def _interval(name: str, found: Estimate) -> str:
    """The interval in brackets; that of a single example is unknown."""
    if np.isinf(found.upper):
        return "(interval unknown)"
    return f"({shown_score(name, found.lower)} to {shown_score(name, found.upper)})"


def _better(name: str) -> str:
    return {True: "higher", False: "lower", None: "neither"}[MEANING[name][1]]


def _examples(subject: Subject) -> int:
    outcomes = subject.outcomes
    return len(outcomes.labels) if isinstance(outcomes, ClassOutcomes) else len(outcomes.y)


def what_was_trained(subjects: list[Subject]) -> Section:
    """The facts about the training of every run."""
    facts = [_facts(each) for each in subjects]
    names = list(dict.fromkeys(name for each in facts for name in each))
    rows = [[name, *(Cell(each.get(name, "")) for each in facts)] for name in names]
    heads = ["", *(each.name for each in subjects)]
    return Section("What was trained, and how", table("Settings and facts", heads, rows, sorts=False))


def _facts(subject: Subject) -> dict[str, str]:
    result, contract = subject.result, subject.contract
    settings: dict[str, Any] = result.get("settings", {})
    classes = contract.get("classes")
    found = {
        "folder": subject.folder,
        "task": contract["task"],
        "data": result.get("data", settings.get("data", "")),
        "takes": _takes(contract),
        "classes": ""
        if not classes
        else f"{len(classes)}: {', '.join(classes[:12])}{' ...' if len(classes) > 12 else ''}",
        "training examples": result.get("examples", result.get("rows", "")),
        "preset": settings.get("preset", "the estimator" if contract["kind"] == "table" else ""),
        "family": result.get("family", ""),
        "nets in the mixture": result.get("members", ""),
        "epochs": result.get("epochs", ""),
        "weight of the KL": result.get("kl_weight", settings.get("kl_weight", "")),
        "parameters": result.get("parameters", ""),
        "random weights": result.get("random_weights", ""),
        "KL in nats": f"{result['kl']:.4g}" if "kl" in result else "",
        "bound on log evidence, in nats": f"{result['elbo']:.5g}" if "elbo" in result else "",
        "draws in a forecast": result.get("draws", ""),
        "seconds of training": result.get("fit_seconds", ""),
        "device": result.get("device", ""),
        "seed": result.get("seed", settings.get("seed", "")),
        "versions": ", ".join(f"{name} {version}" for name, version in result.get("versions", {}).items()),
    }
    return {name: str(value) for name, value in found.items() if value not in ("", None)}


def _takes(contract: dict[str, Any]) -> str:
    if contract["kind"] == "table":
        names = [column["name"] for column in contract["columns"]]
        return f"{len(names)} columns: {', '.join(names[:12])}{' ...' if len(names) > 12 else ''}"
    shape = " by ".join(map(str, contract["shape"]))
    return (
        f"images of {shape}, bytes" if contract["kind"] == "images" else f"{shape} number{'' if shape == '1' else 's'}"
    )


def trust(subjects: list[Subject]) -> Section:
    """What the models must not be trusted with."""
    body = paragraph(
        "A forecast is only as good as its test data are like what comes later. Every forecast says how unlike the "
        "training data its input is, in the column unlike: 99 % of training examples have at most 1, and beyond 3 a "
        "warning is given. The uncertainty of a forecast grows there; whether it grows enough was not tested here."
    )
    for each in subjects:
        body += f"<h3>{escaped(each.name)}</h3>{paragraph(_known_inputs(each), 'note')}{_by_distance(each)}"
    return Section("What it must not be trusted with", body)


def _known_inputs(subject: Subject) -> str:
    contract = subject.contract
    if contract["kind"] == "images":
        shape = " by ".join(map(str, contract["shape"]))
        words = f"It knows images of {shape} like those of training, and no others: other things, other cameras and "
        words += "other scales of brightness are outside."
    elif contract["kind"] == "table":
        words = "It knows rows whose columns lie where those of training lay, and words that occurred there."
    else:
        words = "It knows inputs that lie where those of training lay."
    if contract.get("classes"):
        words += f" An input of none of its {len(contract['classes'])} classes gets one of them all the same."
    return words


def _by_distance(subject: Subject) -> str:
    """The scores of test examples that are more and less like those of training."""
    outcomes = subject.outcomes
    if outcomes.unlike is None:
        return ""
    rows = []
    for name, low, high in (
        ("up to 0.5", -np.inf, 0.5),
        ("0.5 to 1", 0.5, 1),
        ("1 to 3", 1, 3),
        ("beyond 3", 3, np.inf),
    ):
        inside = (outcomes.unlike > low) & (outcomes.unlike <= high)
        count = int(inside.sum())
        if not count:
            rows.append([name, Cell("0", 0), Cell(""), Cell("")])
        elif isinstance(outcomes, ClassOutcomes):
            nll = -np.log(np.maximum(outcomes.probs[inside, outcomes.labels[inside]], 1e-300)).mean()
            error = outcomes.wrong[inside].mean()
            rows.append([name, Cell(str(count), count), Cell(f"{100 * error:.2f} %", error), Cell(f"{nll:.4g}", nll)])
        else:
            error = np.sqrt(np.mean((outcomes.mean.mean(0) - outcomes.y)[inside] ** 2))
            nll = -outcomes.log_prob[inside].mean()
            rows.append([name, Cell(str(count), count), Cell(f"{error:.4g}", error), Cell(f"{nll:.4g}", nll)])
    wrong = "wrong" if isinstance(outcomes, ClassOutcomes) else "RMSE"
    return table(
        f"Test examples of {subject.name} by how unlike the training data they are",
        ["unlike", "examples", wrong, "NLL"],
        rows,
    )


def elsewhere(subjects: list[Subject]) -> Section | None:
    """How the runs do under corruptions, on strange images and at other resolutions; None if none was evaluated so."""
    body = ""
    if any("corruptions" in each.shifts for each in subjects):
        words = "Test images under 19 corruptions: median, quartiles and extremes over the corruptions, and over seeds."
        groups = seed_groups([each for each in subjects if "corruptions" in each.shifts])
        body += figures([
            figure(drawing.severity(groups, "accuracy", "accuracy (share)"), "Accuracy under corruption", words),
            figure(drawing.severity(groups, "ece", "ECE (share)"), "Calibration error under corruption", words),
        ])  # fmt: skip
    for each in subjects:
        if "corruptions" in each.shifts:
            rows = [[name, *_means(cells)] for name, cells in each.shifts["corruptions"]["by_corruption"].items()]
            rows.insert(0, ["mean of all", *(_score(k, v) for k, v in each.shifts["corruptions"]["mean"].items())])
            rows.insert(
                0, ["clean", *(_score(name, each.shifts["clean"][name]) for name in ("accuracy", "nll", "ece"))]
            )
            body += table(
                f"Corruptions of {each.name}, means over severities", ["corruption", "accuracy", "nll", "ece"], rows
            )
        if "ood" in each.shifts:
            sets = each.shifts["ood"]
            heads = ["other images", *(f"AUROC by {score}" for score in next(iter(sets.values())))]
            rows = [[name, *(_score("auroc", of["auroc"]) for of in scores.values())] for name, scores in sets.items()]
            body += table(f"How well {each.name} tells other images from its own", heads, rows)
        if "entropies" in each.shifts:
            words = f"The forecasts of {each.name} for test images and for images of other sets, up to 1,000 of each."
            body += figures([figure(drawing.in_and_out(each), "Uncertainty in and out of distribution", words)])
        if "resolutions" in each.shifts:
            names = ("evaluations", "nll", "ece" if each.has_classes else "rmse")
            rows = [
                [_resolution(of), *(_score(name, of[name]) if name in of else "" for name in names)]
                for of in each.shifts["resolutions"]
            ]
            body += table(f"{each.name} at other resolutions of the solver", ["solver", *names], rows)
    return Section("Where it was not trained", body) if body else None


def _means(cells: list[dict[str, float]]) -> list[Cell]:
    return [_score(name, float(np.mean([cell[name] for cell in cells]))) for name in ("accuracy", "nll", "ece")]


def _score(name: str, value: float) -> Cell:
    return Cell(f"{100 * value:.2f} %" if name in ("accuracy", "ece") else f"{value:.4g}", value)


def _resolution(of: dict[str, Any]) -> str:
    return f"{of['steps']:g} steps" if "steps" in of else f"rtol {of['rtol']:g}"


def repeating(subjects: list[Subject]) -> Section:
    """How to make the same again."""
    commands = "\n".join(each.command for each in subjects)
    words = "On the same device and with the same versions this gives the same numbers, bit for bit on processors."
    return Section(
        "How to repeat it",
        f'<pre tabindex="0" role="region" aria-label="Commands">{escaped(commands)}</pre>{paragraph(words)}',
    )

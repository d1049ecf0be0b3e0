"""The section of a report with every plot of one run."""

from sdebnn.outcomes import ClassOutcomes, NumberOutcomes
from sdebnn.reports import drawing
from sdebnn.reports.page import Cell, Section, figure, figures, table
from sdebnn.reports.subjects import Subject


def illustrations(subject: Subject) -> Section:
    """Every plot of one run."""
    outcomes, found = subject.outcomes, []
    if isinstance(outcomes, ClassOutcomes):
        words = "How often the forecast is right, against how sure it is. Bars: where it lies by chance if calibrated."
        found.append(figure(drawing.reliability(subject), "Calibration", words))
        apart = drawing.right_and_wrong(outcomes)
        if apart is not None:
            found.append(figure(apart, "Uncertainty of right and wrong answers", "The further apart, the better."))
    else:
        found += _of_numbers(outcomes)
    lower = "The error of the most certain, against how many are answered; the lower the better."
    found.append(figure(drawing.risk([subject]), "Risk and coverage", lower))
    words = "Reducible by more data, against noise; one example a dot."
    found.append(figure(drawing.split(subject), "Uncertainty by its source", words))
    words = "Over the epochs of training" + (", of the first net." if subject.result.get("members", 1) > 1 else ".")
    found += [figure(svg, name, words) for name, svg in drawing.curves(subject)]
    body = figures(found)
    grid, line = drawing.pictures(subject), drawing.line(subject)
    if line is not None:
        body = figure(line, "The forecast along the line", "Bands contain 20 to 95 % of predictions.") + body
    if grid is not None:
        body += figure(
            grid,
            "Images that tell most",
            "First the surest mistakes, then the least certain, then the surest right ones.",
        )
    depth = drawing.over_depth(subject)
    if depth is not None:
        body += figure(depth, "Weights and hidden units over depth", _about_depth(subject), style="density")
    if isinstance(outcomes, ClassOutcomes):
        body += _by_class(subject, outcomes)
    return Section(f"Pictures of {subject.name}", body)


def _by_class(subject: Subject, outcomes: ClassOutcomes) -> str:
    """How often each class occurs, is found, and is right when it is said; empty where there is nothing to count."""
    said, rows = outcomes.probs.argmax(-1), []
    for number, name in enumerate(outcomes.names):
        true, claimed = outcomes.labels == number, said == number
        both = int((true & claimed).sum())
        rows.append([name, *_counted(int(true.sum()), both), *_counted(int(claimed.sum()), both)])
    heads = ["class", "test examples", "of them found", "times said", "of them right"]
    return table(f"Classes of {subject.name}", heads, rows)


def _counted(count: int, hits: int) -> tuple[Cell, Cell]:
    share = Cell("") if not count else Cell(f"{100 * hits / count:.1f} %", hits / count)
    return Cell(f"{count:,}", count), share


def _about_depth(subject: Subject) -> str:
    """What the densities over depth are of."""
    found = subject.depths
    assert found is not None
    place = "the random block" if found.blocks == 1 else f"the first of {found.blocks} random blocks"
    if found.nets > 1:
        place += f" of the first of {found.nets} nets"
    return (
        f"{len(found.weights)} draws from the posterior of {place}, three of them as lines; stronger is more probable, "
        f"and every depth has its own scale. Top: of its {found.weight_count:,} weights (standardised) the one whose "
        "mean, in other draws, moves furthest from depth 0 to 1, the one that moves further than three quarters of "
        f"all, and the middle one. Below: of its {found.unit_count:,} hidden units those chosen in the same way, for "
        "the test examples about which the forecast is surest and least sure, among those that the run keeps. All "
        "draws start from the same hidden units."
    )


def _of_numbers(outcomes: NumberOutcomes) -> list[str]:
    return [
        figure(drawing.predicted(outcomes), "Predicted and true", "Each with its 95 % interval."),
        figure(drawing.coverage(outcomes), "Coverage", "How many targets lie in an interval, against how many should."),
        figure(
            drawing.pit(outcomes), "Ranks of the truth (PIT)", "Flat if the forecast is right; a hump means too wide."
        ),
    ]

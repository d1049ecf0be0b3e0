"""Draw docs/walk.png: the rooms of the package in layers, and three jobs as lines through them.

    python docs/walk.py

The numbers on a line are those of the steps in docs/walk.md.
"""

from itertools import pairwise
from pathlib import Path

# The rooms of each layer, and the column in which the picture shows each. A layer imports only from itself and from the
# layers before it.
LAYERS = {
    "foundations": {
        "checks": 0,
        "files": 1,
        "records": 2,
        "fingerprints": 3,
        "devices": 4,
        "programs": 5,
        "host_arrays": 6,
        "meshes": 7,
        "hosts": 8,
    },
    "parts": {
        "data": 0,
        "convolutions": 1,
        "fields": 2,
        "processes": 3,
        "likelihoods": 4,
        "metrics": 5,
        "calibration": 6,
        "waves": 7,
        "columns": 8,
        "outcomes": 9,
        "corruptions": 10,
    },
    "models": {"nets": 0, "models": 1, "contract": 2, "integrate": 3, "baselines": 4, "nn": 5},
    "use": {"train": 1.6, "prediction": 4, "description": 5, "strangeness": 6},
    "recipes": {"runs": 0, "presets": 1.2, "estimators": 2.4, "artifacts": 3.6, "compare": 5},
    "front": {
        "cli": 0,
        "tables": 1,
        "forecasters": 2,
        "shifts": 3,
        "sweeps": 4,
        "export": 5,
        "serve": 6,
        "plots": 7,
        "reports": 8,
        "verify": 9,
    },
}
# Each job: its colour, and the rooms that its steps enter.
WALKS = {
    "sdebnn train --data digits": (
        "#c0392b",
        "cli runs data presets nets models train integrate processes likelihoods prediction",
    ),
    "SDEBNNRegressor: fit, predict": (
        "#2471a3",
        "estimators data models train integrate processes likelihoods prediction estimators",
    ),
    "predict(model, x, rtol=1e-3)": (
        "#1e8449",
        "prediction models integrate contract models integrate processes",
    ),
}
WIDTH, HEIGHT = 10.0, 8.2  # inches, at 100 pixels each
ROW, BOX, BOX_HEIGHT = 1.3, 1.2, 0.72  # distance of rows, width and height of a box
LEFT, RIGHT, BOTTOM = 1.2, 9.95, 0.05
FACES = ("#eeeeee", "#f7efd9", "#e4eef7", "#e8f3e6", "#f5e6ee", "#ece7f4")


def _gap(rooms: dict[str, float]) -> float:
    return (RIGHT - LEFT) / max(6, len(rooms))


def centers() -> dict[str, tuple[float, float]]:
    """The center of the box of every room, foundations at the bottom."""
    found = {}
    for row, rooms in enumerate(LAYERS.values()):
        gap = _gap(rooms)
        for room, column in rooms.items():
            found[room] = (LEFT + gap * (column + 0.5), BOTTOM + ROW * row + BOX_HEIGHT / 2)
    return found


def stops() -> dict[str, list[tuple[float, float]]]:
    """The places of the steps of every walk. All steps in one room share a line at the bottom of its box."""
    places, inside = centers(), {}
    for name, (_, rooms) in WALKS.items():
        for step, room in enumerate(rooms.split()):
            inside.setdefault(room, []).append((name, step))
    found = {name: [(0.0, 0.0)] * len(rooms.split()) for name, (_, rooms) in WALKS.items()}
    for room, here in inside.items():
        x, y = places[room]
        for number, (name, step) in enumerate(here):
            found[name][step] = (x + 0.23 * (number - (len(here) - 1) / 2), y - 0.16)
    return found


def draw(path: Path) -> None:
    """Write the picture."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot
    from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
    from matplotlib.patheffects import withStroke

    figure = pyplot.figure(figsize=(WIDTH, HEIGHT), dpi=100)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(0, HEIGHT))
    axes.axis("off")
    places = centers()
    for row, (layer, rooms) in enumerate(LAYERS.items()):
        axes.text(0.1, BOTTOM + ROW * row + BOX_HEIGHT / 2, layer, fontsize=11, style="italic", va="center")
        box = min(BOX, _gap(rooms) - 0.04)
        for room in rooms:
            x, y = places[room]
            axes.add_patch(
                FancyBboxPatch(
                    (x - box / 2 + 0.04, y - BOX_HEIGHT / 2 + 0.04), box - 0.08, BOX_HEIGHT - 0.08,
                    boxstyle="round,pad=0.04", facecolor=FACES[row], edgecolor="#999999", zorder=1,
                )
            )  # fmt: skip
            halo = [withStroke(linewidth=3, foreground=FACES[row])]
            up = 0.16 if row else 0.0
            axes.text(
                x,
                y + up,
                room,
                fontsize=11 if len(rooms) < 8 else 9.5,
                ha="center",
                va="center",
                zorder=4,
                weight="bold",
                path_effects=halo,
            )
    for number, (name, steps) in enumerate(stops().items()):
        colour = WALKS[name][0]
        for start, end in pairwise(steps):
            axes.add_patch(
                FancyArrowPatch(
                    start, end, arrowstyle="-|>", mutation_scale=11, shrinkA=7, shrinkB=7, color=colour, linewidth=1.6,
                    alpha=0.75, zorder=2, connectionstyle=f"arc3,rad={0.06 + 0.06 * number}",
                )
            )  # fmt: skip
        for step, (x, y) in enumerate(steps):
            axes.plot(x, y, "o", markersize=14, color=colour, markeredgecolor="white", zorder=5)
            axes.text(x, y - 0.005, str(step + 1), fontsize=8.5, color="white", ha="center", va="center", zorder=6)
        x = 0.35 + 3.25 * number
        axes.plot([x, x + 0.35], [HEIGHT - 0.3] * 2, color=colour, linewidth=3)
        axes.text(x + 0.45, HEIGHT - 0.3, name, fontsize=11, va="center", color=colour)
    figure.savefig(path, metadata={"Software": None})


if __name__ == "__main__":
    draw(Path(__file__).with_suffix(".png"))

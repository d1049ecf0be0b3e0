"""Letters and kana from the fonts of this machine, as images of 28 by 28 pixels in the manner of notMNIST and KMNIST.

    python experiments/letters.py FOLDER [--count 5000]

Writes FOLDER/letters.npy (A to J, each from a random font) and FOLDER/kana.npy (the ten characters of KMNIST, from
fonts with Japanese handwriting and print, turned and stretched at random), light on dark, as MNIST is. They stand in
for the published sets where those are not at hand; ``fc-list`` says which fonts there are.
"""

import argparse
import subprocess
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

LETTERS, KANA = "ABCDEFGHIJ", "おきすつなはまやれを"
SIZE, LARGE = 28, 112


def fonts(language: str | None = None) -> list[str]:
    """The files of the fonts that are installed, or of those for a language."""
    query = [] if language is None else [f":lang={language}"]
    listed = subprocess.run(
        ["fc-list", *query, "--format", "%{file}\n"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    return sorted({name for name in listed.split("\n") if name.lower().endswith((".ttf", ".otf"))})


def drawn(character: str, font: str, random: np.random.Generator, warp: bool) -> np.ndarray | None:
    """One character, scaled to fill most of the image; None if the font lacks it."""
    image = Image.new("L", (LARGE, LARGE))
    try:
        shape = ImageFont.truetype(font, int(LARGE * 0.75))
        left, top, right, bottom = shape.getbbox(character)
        if not 0.2 * LARGE < max(right - left, bottom - top) < LARGE or shape.getmask(character) == shape.getmask(
            "\uffff"
        ):
            return None
        at = ((LARGE - left - right) / 2, (LARGE - top - bottom) / 2)
        ImageDraw.Draw(image).text(at, character, fill=255, font=shape)
    except OSError:
        return None
    if warp:
        angle = np.deg2rad(random.uniform(-12, 12))
        stretch, shear = random.uniform(0.85, 1.2, 2), random.uniform(-0.2, 0.2)
        a, b, c, d = (np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
                      @ np.array([[stretch[0], shear], [0, stretch[1]]])).ravel()  # fmt: skip
        half = LARGE / 2
        image = image.transform(
            image.size, Image.Transform.AFFINE, (a, b, half - half * (a + b), c, d, half - half * (c + d)),
            Image.Resampling.BILINEAR,
        )  # fmt: skip
    pixels = np.asarray(image.resize((SIZE, SIZE), Image.Resampling.LANCZOS))
    return pixels if pixels.mean() * 1.0 + 15 > 20 and pixels.max() > 100 else None


def characters(wanted: str, files: list[str], count: int, *, warp: bool, seed: int) -> np.ndarray:
    random, found = np.random.default_rng(seed), []
    usable = set(files)
    while len(found) < count:
        file = str(random.choice(sorted(usable)))
        pixels = drawn(str(random.choice(list(wanted))), file, random, warp)
        if pixels is None:
            usable.discard(file)
        else:
            found.append(pixels)
    return np.stack(found)[..., None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=5000)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    np.save(given.folder / "letters.npy", characters(LETTERS, fonts(), given.count, warp=False, seed=0))
    np.save(given.folder / "kana.npy", characters(KANA, fonts("ja"), given.count, warp=True, seed=1))


if __name__ == "__main__":
    main()

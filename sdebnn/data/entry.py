"""A row of the catalogue of data sets: what is known about one set, and the function that reads it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from sdebnn.data.dataset import Part

PARTS = ("train", "test")


class File(NamedTuple):
    """The size in bytes and the md5 of a file as it is published.

        file = sdebnn.data.File(size=28_881, md5="d53e105ee54ea40749a09fcbcd1e9432")

    ``sdebnn.data.get`` keeps a download only if both are right.
    """

    size: int
    md5: str


class Source(NamedTuple):
    """The address at which a data set is published, and the files to fetch from there.

        file = sdebnn.data.File(size=28_881, md5="d53e105ee54ea40749a09fcbcd1e9432")
        source = sdebnn.data.Source("https://example.org/digits", {"labels.gz": file})

    If ``unpack`` is true, the files are tar archives that hold the files of ``Entry.digests``: they are unpacked after
    the download and then deleted.
    """

    address: str
    files: Mapping[str, File]
    unpack: bool = False


class Request(NamedTuple):
    """What a reader is asked to read.

    ``folder`` is the folder of this data set, ``seed`` selects the split or the sample of a set that is not split by
    its publisher, ``options`` are the words after the name ("uci/concrete/0" has the options ("concrete", "0")), and
    ``parts`` are those of "train" and "test" that are wanted: the other part may be returned empty.
    """

    entry: "Entry"
    folder: Path
    seed: int = 0
    options: tuple[str, ...] = ()
    parts: tuple[str, ...] = PARTS


Reader = Callable[[Request], tuple[Part, Part]]


class Entry(NamedTuple):
    """One data set: its name, its reader, and what is known about it before it is read.

    A reader takes a ``Request`` and returns the training part and the test part. To add a data set to the package,
    write a reader and add one row to ``catalogue.ENTRIES``. To use a data set of your own from Python, pass the row
    itself where a name is accepted:

        def parabola(request):
            x = np.random.default_rng(request.seed).uniform(-1, 1, (60, 1)).astype(np.float32)
            y = x**2
            return sdebnn.data.Part(x[:40], y[:40]), sdebnn.data.Part(x[40:], y[40:])

        entry = sdebnn.data.Entry("parabola", parabola, "A parabola.", shape=(1,))
        data = sdebnn.data.load(entry)
        fitted = sdebnn.fit(model, likelihood, *data.train, key=key, epochs=20)

    If the files are published, ``source`` says where, and ``digests`` holds the md5 of the contents of each file, by
    its name without .gz: the reader compares them with ``storage.check_digest``. ``shape`` is the shape of one example,
    or None if it depends on the options; ``classes`` is None for a regression. ``noise`` is the standard deviation of
    the noise of a regression, if the models are to know it.
    """

    name: str
    reader: Reader
    summary: str
    shape: tuple[int, ...] | None
    classes: tuple[str, ...] | None = None
    source: Source | None = None
    digests: Mapping[str, str] = {}
    options: tuple[str, ...] = ()  # what the words after the name mean, such as ("NAME", "SPLIT")
    subfolder: str | None = None  # folder of the files, if it is not called like the data set
    noise: float | None = None

    @property
    def built_in(self) -> bool:
        """Whether the data need no files in the folder of all data sets."""
        return self.source is None and not self.options

    @property
    def is_table(self) -> bool:
        """Whether the examples are rows of numbers, as all those are whose number of columns depends on the options."""
        return self.shape is None or len(self.shape) == 1

    def folder(self, root: Path) -> Path:
        """The folder of this data set in the folder of all data sets."""
        return root / (self.subfolder or self.name)

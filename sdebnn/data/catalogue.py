"""The catalogue of data sets: one row for each, and the functions that find and read one.

``sdebnn data list``, ``sdebnn data get``, ``sdebnn train`` and ``sdebnn compare`` all read this table. ``Entry`` says
how to add a row.
"""

from collections.abc import Sequence
from pathlib import Path

from sdebnn.checks import check_count, shown
from sdebnn.data import folders, images, storage, tabular, toy
from sdebnn.data.dataset import DataSet
from sdebnn.data.entry import PARTS, Entry, File, Request, Source

DIGITS = tuple("0123456789")
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

ENTRIES = (
    Entry(
        "toy",
        toy.sample(toy.wave, 200, 400),
        "200 points of wave, with the standard deviation of the noise given to the models.",
        shape=(1,),
        noise=toy.WAVE_NOISE,
    ),
    Entry("wave", toy.sample(toy.wave), "Regression on a line: a damped sine on a slope.", shape=(1,)),
    Entry("ripple", toy.sample(toy.ripple), "Regression on a line: a sine on a slope, on [-5, 5].", shape=(1,)),
    Entry("cubic", toy.sample(toy.cubic), "Regression on a line: a cubic with large noise.", shape=(1,)),
    Entry("step", toy.sample(toy.step), "Regression on a line: a step from 0 to 1.", shape=(1,)),
    Entry("uneven", toy.sample(toy.uneven), "Regression on a line: a sine whose noise grows with x.", shape=(1,)),
    Entry("gap", toy.sample(toy.gap), "Regression on a line, with no inputs between -0.7 and 0.5.", shape=(1,)),
    Entry("moons", toy.sample(toy.moons), "Two interleaving half circles.", shape=(2,), classes=("0", "1")),
    Entry("spirals", toy.sample(toy.spirals), "Two interleaving spirals.", shape=(2,), classes=("0", "1")),
    Entry(
        "digits",
        images.digits,
        "Handwritten digits of scikit-learn: 1,437 training images and 360 test images.",
        shape=(8, 8, 1),
        classes=DIGITS,
    ),
    Entry(
        "mnist",
        images.idx,
        "Handwritten digits: 60,000 training images and 10,000 test images.",
        shape=(28, 28, 1),
        classes=DIGITS,
        source=Source(
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            {
                "train-images-idx3-ubyte.gz": File(9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
                "train-labels-idx1-ubyte.gz": File(28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
                "t10k-images-idx3-ubyte.gz": File(1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
                "t10k-labels-idx1-ubyte.gz": File(4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
            },
        ),
        digests={
            "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
            "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
            "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
            "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
        },
    ),
    Entry(
        "fashion-mnist",
        images.idx,
        "Articles of clothing: 60,000 training images and 10,000 test images.",
        shape=(28, 28, 1),
        classes=(
            "T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
        ),
        source=Source(
            # The publisher's repository at one commit: its S3 address is a website endpoint, which has no https.
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/b2617bb6d3ffa2e429640350f613e3291e10b141/data/fashion",
            {
                "train-images-idx3-ubyte.gz": File(26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
                "train-labels-idx1-ubyte.gz": File(29_515, "25c81989df183df01b3e8a0aad5dffbe"),
                "t10k-images-idx3-ubyte.gz": File(4_422_102, "bef4ecab320f06d8554ea6380940ec79"),
                "t10k-labels-idx1-ubyte.gz": File(5_148, "bb300cfdad3c16e7a12a480ee83cd310"),
            },
        ),
        digests={
            "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
            "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
            "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
        },
    ),
    Entry(
        "cifar10",
        images.cifar10,
        "Photographs of ten kinds of objects: 50,000 training images and 10,000 test images.",
        shape=(32, 32, 3),
        classes=CIFAR10_CLASSES,
        source=Source(
            "https://www.cs.toronto.edu/~kriz",
            {"cifar-10-binary.tar.gz": File(170_052_171, "c32a1d4ab5d03f1284b67883e8d87530")},
        ),
        digests={
            "cifar-10-batches-bin/data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
            "cifar-10-batches-bin/data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
            "cifar-10-batches-bin/data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
            "cifar-10-batches-bin/data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
            "cifar-10-batches-bin/data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
            "cifar-10-batches-bin/test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
            "cifar-10-batches-py/data_batch_1": "c99cafc152244af753f735de768cd75f",
            "cifar-10-batches-py/data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "cifar-10-batches-py/data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "cifar-10-batches-py/data_batch_4": "634d18415352ddfa80567beed471001a",
            "cifar-10-batches-py/data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "cifar-10-batches-py/test_batch": "40351d587109b95175f43aff81a1287e",
        },
    ),
    Entry(
        "cifar10c",
        images.cifar10c,
        "Test images of CIFAR-10 under one of 19 corruptions, at a severity from 1 to 5.",
        shape=(32, 32, 3),
        classes=CIFAR10_CLASSES,
        source=Source(
            "https://zenodo.org/records/2535967/files",
            {"CIFAR-10-C.tar": File(2_918_471_680, "56bf5dcef84df0e2308c6dcbcbbd8499")},
            unpack=True,
        ),
        digests={
            "labels.npy": "c439b113295ed5254878798ffe28fd54",
            "brightness.npy": "0a81ef75e0b523c3383219c330a85d48",
            "contrast.npy": "3c8262171c51307f916c30a3308235a8",
            "defocus_blur.npy": "7d1322666342a0702b1957e92f6254bc",
            "elastic_transform.npy": "9421657c6cd452429cf6ce96cc412b5f",
            "fog.npy": "7b397314b5670f825465fbcd1f6e9ccd",
            "frost.npy": "31f6ab3bce1d9934abfb0cc13656f141",
            "gaussian_blur.npy": "c33370155bc9b055fb4a89113d3c559d",
            "gaussian_noise.npy": "ecaf8b9a2399ffeda7680934c33405fd",
            "glass_blur.npy": "7361fb4019269e02dbf6925f083e8629",
            "impulse_noise.npy": "2090e01c83519ec51427e65116af6b1a",
            "jpeg_compression.npy": "2b9cc4c864e0193bb64db8d7728f8187",
            "motion_blur.npy": "fffa5f852ff7ad299cfe8a7643f090f4",
            "pixelate.npy": "0f14f7e2db14288304e1de10df16832f",
            "saturate.npy": "1cfae0964219c5102abbb883e538cc56",
            "shot_noise.npy": "3a7239bb118894f013d9bf1984be7f11",
            "snow.npy": "bb238de8555123da9c282dea23bd6e55",
            "spatter.npy": "8a5a3903a7f8f65b59501a6093b4311e",
            "speckle_noise.npy": "ef00b87611792b00df09c0b0237a1e30",
            "zoom_blur.npy": "6ea8e63f1c5cdee1517533840641641b",
        },
        options=("CORRUPTION", "SEVERITY"),
        subfolder="CIFAR-10-C",
    ),
    Entry(
        "uci",
        tabular.uci,
        "UCI regressions with fixed splits, from the folders uci/NAME with data.txt and index_*.txt.",
        shape=None,
        options=("NAME", "SPLIT"),
    ),
)  # fmt: skip
CATALOGUE = {entry.name: entry for entry in ENTRIES}


def find(name: str) -> tuple[Entry, tuple[str, ...]] | None:
    """The row of a name and the options after it, or None: "uci/concrete/0" is the row "uci" with two options."""
    first, *options = name.split("/")
    entry = CATALOGUE.get(first)
    if entry is None or len(options) > len(entry.options):
        return None
    return entry, tuple(options)


def load(
    name: str | Entry,
    *,
    seed: int = 0,
    folder: storage.Folder = None,
    parts: Sequence[str] = PARTS,
    test: float | None = None,
    size: int | None = None,
) -> DataSet:
    """Read a data set: a name of the catalogue, a row of your own, or files of your own.

        moons = sdebnn.data.load("moons")
        x, y = moons.train
        digits = sdebnn.data.load("digits", parts=("test",))
        own = sdebnn.data.load("photos", size=16)

    Your own are a folder of pictures (``folders.images``), a .npz file, a folder of .npy files or of shards
    (``tabular.arrays``), or a .csv file of numbers. ``test`` is the share of examples for the test part (a tenth) of
    data that have none, and ``size`` the side to which pictures are scaled.

    ``seed`` selects the split of a set that is not split by its publisher, and the sample of one that is generated.
    ``folder`` is the folder of all data sets (else SDEBNN_DATA, else the user's cache). With parts=("test",) the
    training part is empty and need not be on disk.
    """
    check_count("seed", seed, least=0)
    if isinstance(parts, str) or not parts or any(part not in PARTS for part in parts):
        raise ValueError(f"parts={shown(parts)} must be some of {PARTS}, such as parts=('test',).")
    wanted = tuple(part for part in PARTS if part in parts)
    found = (name, ()) if isinstance(name, Entry) else find(name)
    if found is None:
        return _own_files(str(name), seed, test, size)
    entry, options = found
    found_parts = entry.reader(Request(entry, entry.folder(storage.home(folder)), seed, options, wanted))
    full = "/".join((entry.name, *options))
    for part, (x, _) in zip(PARTS, found_parts, strict=True):
        if part in wanted and len(x) == 0:
            others = tuple(other for other in PARTS if other != part)
            raise ValueError(f"{full} has no {part} part: pass parts={others}, or choose another data set.")
        if entry.shape is not None and x.shape[1:] != entry.shape:
            raise ValueError(
                f"the reader of {full} returned examples of shape {x.shape[1:]} in the {part} part, and its row "
                f"declares {entry.shape}: make them agree."
            )
    return DataSet(full, *found_parts, entry.classes)


def _own_files(name: str, seed: int, test: float | None, size: int | None) -> DataSet:
    """The user's own data set, by the path of its file or folder."""
    path = Path(name)
    arrays = any((path / name).exists() for name in ("x_train.npy", "x_train-00000.npy"))
    if path.is_dir() and not arrays and folders.is_pictures(path):
        return folders.images(path, size=size, test=test, seed=seed)
    if size is not None and path.exists():
        raise ValueError(f"size={size} is for pictures, and {path} holds none: leave it out.")
    if path.is_dir() and not any(path.glob("[xy]_*.npy")):
        raise ValueError(
            f"{path} holds neither one folder of pictures for each class, nor x_train.npy, y_train.npy, x_test.npy and "
            "y_test.npy: pass such a folder, or the name of a file in it."
        )
    if path.is_dir():
        tabular.check_no_share(path, test)
        return tabular.arrays(path)
    if path.suffix == ".npz" and path.exists():
        return folders.npz(path, test=test, seed=seed)
    if path.suffix == ".csv":
        return tabular.csv(path, test=test, seed=seed)
    names = ", ".join("/".join((entry.name, *entry.options)) for entry in CATALOGUE.values())
    raise ValueError(
        f"data={name!r} is unknown: choose one of {names}, a .csv file, a .npz file, a folder with one folder of "
        "pictures for each class, or a folder with x_train.npy, y_train.npy, x_test.npy and y_test.npy."
    )

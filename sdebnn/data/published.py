"""What is published: the files of each data set, by the md5 of their contents, and where they lie on this machine.

A reader compares what it read with these digests, whatever wrapped it (a file as it is, gzip, a tar archive): one bit
that differs is refused.
"""

import hashlib
import os
from pathlib import Path

from sdebnn.checks import shown

DIGESTS: dict[str, dict[str, str]] = {
    "mnist": {
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
    "fashion-mnist": {
        "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    },
    "cifar10": {
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
    "cifar10c": {
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
}


def home(folder: str | os.PathLike[str] | None = None) -> Path:
    """Where data sets lie: ``folder``, else the environment variable SDEBNN_DATA, else the user's cache."""
    if folder is not None:
        if not isinstance(folder, str | os.PathLike) or folder == "":
            raise ValueError(f"folder={shown(folder)} must be a path, such as 'data'.")
        return Path(folder).expanduser()
    if given := os.environ.get("SDEBNN_DATA"):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sdebnn"


def check_digest(where: str, blob: bytes | memoryview, md5: str) -> None:
    """Refuse contents that are not the published ones."""
    found = hashlib.md5(blob, usedforsecurity=False).hexdigest()
    if found != md5:
        raise ValueError(f"{where} is damaged or not the published file: its md5 is {found}, it should be {md5}.")

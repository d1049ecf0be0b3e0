"""Pictures in folders and arrays in .npz files, as people have them, and damaged ones."""

import io
import struct
import warnings
import zipfile
import zlib

import numpy as np
import pytest
from PIL import Image

from sdebnn.data import folders, formats, load


def picture(path, pixels, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels, np.uint8)).save(path, **options)
    return path


def classes(root, *, count=5, shape=(8, 8), seed=0):
    rng = np.random.default_rng(seed)
    for name in ("cat", "dog"):
        for i in range(count):
            picture(root / name / f"{i}.png", rng.integers(0, 256, shape))
    return root


def test_each_folder_is_a_class_and_pixels_stay_what_they_are(tmp_path):
    root = classes(tmp_path / "pets", count=5)
    data = load(str(root), test=0.2, seed=3)
    assert data.name == "pets"
    assert data.classes == ("cat", "dog")
    assert (data.train.x.shape, data.test.x.shape) == ((8, 8, 8, 1), (2, 8, 8, 1))
    assert data.train.x.dtype == np.uint8
    assert data.train.y.dtype == np.int32
    every = {(path.parent.name, np.asarray(Image.open(path)).tobytes()) for path in root.rglob("*.png")}
    pairs = [pair for part in (data.train, data.test) for pair in zip(*part, strict=True)]
    found = {(data.classes[label], image.tobytes()) for image, label in pairs}
    assert found == every


def test_parts_that_are_there_are_kept_and_one_picture_in_colour_makes_three_channels(tmp_path):
    classes(tmp_path / "train", count=3)
    classes(tmp_path / "test", count=1, seed=1)
    picture(tmp_path / "train" / "cat" / "red.jpg", np.full((8, 8, 3), (255, 0, 0)), quality=95)
    data = load(str(tmp_path))
    assert data.train.x.shape == (7, 8, 8, 3)
    assert data.test.x.shape == (2, 8, 8, 3)
    red = data.train.x[
        np.argmax(data.train.x[..., 0].astype(int).sum((1, 2)) - data.train.x[..., 1].astype(int).sum((1, 2)))
    ]
    np.testing.assert_allclose(red.mean((0, 1)), (255, 0, 0), atol=3)


def test_other_sizes_are_scaled_and_cropped_aloud(tmp_path):
    halves = np.zeros((40, 80), np.uint8)
    halves[:, 40:] = 200
    for name in ("a", "b"):
        picture(tmp_path / name / "0.png", halves)
        picture(tmp_path / name / "1.png", halves[:, ::-1])
    with pytest.warns(UserWarning, match="80 by 40 pixels are scaled and cropped to 32 by 32"):
        data = load(str(tmp_path), test=0.5)
    assert data.train.x.shape == (2, 32, 32, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = load(str(tmp_path), size=8, test=0.5)
    image = data.train.x[0, :, :, 0]
    left, right = sorted((image[:, :4].mean(), image[:, 4:].mean()))
    assert (left, right) == (0, 200)  # the middle 40 by 40, each block of 5 by 5 its mean


def test_a_picture_is_turned_as_its_camera_says(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter to the right
    tall = np.zeros((8, 16, 3), np.uint8)
    tall[:, :8] = 250
    picture(tmp_path / "x.jpg", tall, exif=exif, quality=95)
    x, names = folders.pictures(tmp_path, (16, 8, 3))
    assert names == ["x.jpg"]
    assert x[0, :8].mean() > 240
    assert x[0, 8:].mean() < 10


def bomb():
    """A PNG that declares 100,000 by 100,000 pixels."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0" * 1000))
        + chunk(b"IEND", b"")
    )


def deep():
    stream = io.BytesIO()
    Image.fromarray(np.zeros((8, 8), np.uint16)).save(stream, "PNG")
    return stream.getvalue()


@pytest.mark.parametrize(
    ("blob", "words"),
    [
        (b"", "is no picture that can be read"),
        (b"GIF89a nonsense", "is no picture that can be read"),
        (bomb(), "declares more than"),
        (deep(), "8 bits a channel"),
    ],
)
def test_what_is_no_picture_is_refused_in_words(tmp_path, blob, words):
    classes(tmp_path, count=2)
    (tmp_path / "cat" / "bad.png").write_bytes(blob)
    with pytest.raises(ValueError, match=words) as error:
        load(str(tmp_path))
    assert "bad.png" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_damaged_picture_is_refused_in_words_or_read(tmp_path):
    root = classes(tmp_path, count=2)
    file = root / "cat" / "0.png"
    whole = file.read_bytes()
    for cut in range(0, len(whole) - 40, 5):
        file.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match=r"0\.png"):
            load(str(root), test=0.5)
    for position in range(len(whole)):
        file.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        try:
            load(str(root), test=0.5)
        except ValueError as error:
            assert "0.png" in str(error)
            assert "\n" not in str(error)


def test_folders_without_classes_are_refused_in_words(tmp_path):
    picture(tmp_path / "flat" / "1.png", np.zeros((8, 8)))
    for root, words in (
        (tmp_path / "flat", "has no folders"),
        (classes(tmp_path / "one") / "cat", "has no folders"),
    ):
        with pytest.raises(ValueError, match=words):
            load(str(root))
    only = tmp_path / "only"
    picture(only / "cat" / "1.png", np.zeros((8, 8)))
    with pytest.raises(ValueError, match="pictures of 1 class"):
        load(str(only))
    (only / "dog").mkdir()
    with pytest.raises(ValueError, match="dog holds no picture"):
        load(str(only))


def test_pictures_beside_classes_are_left_out_aloud_and_beside_arrays_ignored(tmp_path):
    root = classes(tmp_path / "pets")
    picture(root / "preview.png", np.zeros((8, 8)))
    with pytest.warns(UserWarning, match="1 pictures are in no folder of a class"):
        assert len(load(str(root)).train.x) == 9
    with pytest.raises(ValueError, match="size=8 is for pictures"):
        np.savez(tmp_path / "a.npz", x=np.zeros((4, 2)), y=[0, 1, 0, 1])
        load(str(tmp_path / "a.npz"), size=8)
    arrays = tmp_path / "arrays"
    picture(arrays / "preview.png", np.zeros((8, 8)))
    for part in ("train", "test"):
        np.save(arrays / f"x_{part}.npy", np.zeros((4, 2)))
        np.save(arrays / f"y_{part}.npy", np.arange(4) % 2)
    assert load(str(arrays)).classes == ("0", "1")
    with pytest.raises(ValueError, match=r"test=0.3 is for data without a test part"):
        load(str(arrays), test=0.3)


def test_a_npz_holds_parts_or_is_split_and_labels_may_be_words(tmp_path):
    x, y = np.arange(40, dtype=np.uint8).reshape(10, 2, 2, 1), np.array(["no", "yes"] * 5)
    np.savez(tmp_path / "a.npz", x=x, y=y)
    data = load(str(tmp_path / "a.npz"), test=0.3)
    assert data.classes == ("no", "yes")
    assert (len(data.train.x), len(data.test.x)) == (7, 3)
    for part in (data.train, data.test):
        np.testing.assert_array_equal(np.asarray(part.y), (np.asarray(part.x)[:, 0, 0, 0] // 4) % 2)
    np.savez_compressed(tmp_path / "b.npz", x_train=x[:8], y_train=np.arange(8) % 2, x_test=x[8:], y_test=[0, 1])
    data = load(str(tmp_path / "b.npz"))
    np.testing.assert_array_equal(data.test.x, x[8:])
    assert data.classes == ("0", "1")


def test_a_npz_that_is_damaged_or_holds_other_things_is_refused_in_words(tmp_path):
    file = tmp_path / "a.npz"
    np.savez(file, z=np.zeros(3))
    with pytest.raises(ValueError, match="holds z: save x and y"):
        load(str(file))
    np.savez(file, x=np.zeros((3, 2)), y=np.array([1, None, "a"], object))
    with pytest.raises(ValueError, match="y"):
        load(str(file))
    np.savez(file, x=np.zeros((6, 2)), y=np.arange(6) % 2)
    whole, refused = file.read_bytes(), 0
    for mutated in (
        *(whole[:cut] for cut in range(0, len(whole), 9)),
        *(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :] for at in range(0, len(whole), 3)),
    ):
        file.write_bytes(mutated)
        try:
            load(str(file))
        except (ValueError, FileNotFoundError) as error:
            assert str(file) in str(error)
            assert "\n" not in str(error)
            refused += 1
    assert refused > 150
    np.savez(file, x=3.0, y=2.0)
    with pytest.raises(ValueError, match="first axis"):
        load(str(file))
    with zipfile.ZipFile(file, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("x.npy", bytes(1000))
    whole = bytearray(file.read_bytes())
    whole[60:70] = bytes(10)
    file.write_bytes(whole)
    with pytest.raises(ValueError, match="x is damaged"):
        formats.array_in(file, "x")
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**10, 2)})
        archive.writestr("x.npy", header.getvalue())
        archive.writestr("y.npy", header.getvalue())
    with pytest.raises(ValueError, match="declares"):
        formats.array_in(file, "x")

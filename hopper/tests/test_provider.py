"""What sdebnn sees of sdebnn-hopper: its entry point, which steps it takes, and what it compiles ahead."""

import queue
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from steps import drawn, environment, needs_jax

import sdebnn_hopper
from sdebnn import FixedGrid, bayesianize
from sdebnn.convolutions import TimeConv, kernels
from sdebnn.convolutions.kernels import EulerSteps
from sdebnn_hopper import MAX_STEPS, HopperKernels
from sdebnn_hopper.pixels.shape import SHAPES, WIDTH, BlockShape

FOLDER = Path(__file__).parents[1]
H200 = SimpleNamespace(platform="gpu", device_kind="NVIDIA H200", compute_capability="9.0")
B200 = SimpleNamespace(platform="gpu", device_kind="NVIDIA B200", compute_capability="10.0")


def given(*shape: int, width: int = 32, steps: int = 2, channels: int | None = None) -> EulerSteps:
    """Steps of a batch of images of this shape, without their numbers; ``channels`` are those of the layers."""
    layers = jax.eval_shape(lambda: drawn(shape[-1] if channels is None else channels, width, steps))
    return EulerSteps(layers, jax.ShapeDtypeStruct((5, *shape), jnp.float32), jnp.tanh, "bfloat16")


def as_type(steps: EulerSteps, dtype) -> EulerSteps:
    return steps._replace(h0=steps.h0.update(dtype=dtype))


def one_wide_layer(steps: EulerSteps) -> EulerSteps:
    first, (_, time, bias), *others = steps.layers
    kernel = jax.ShapeDtypeStruct((2, 3, 3, 32, 64), jnp.float32)
    return steps._replace(layers=(first, (kernel, time, bias), *others))


@pytest.mark.parametrize("side", [4, 12, 28])
def test_narrow_fields_on_small_images_are_taken(side: int):
    assert HopperKernels().refusal(given(side, side, 3)) is None


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_three_scales_of_the_wide_field_are_taken_and_no_others(shape: BlockShape):
    side, channels = shape
    assert HopperKernels().refusal(given(side, side, channels, width=WIDTH)) is None
    assert HopperKernels().refusal(given(2 * side, 2 * side, channels, width=WIDTH))
    assert HopperKernels().refusal(given(side, side, channels, width=WIDTH, channels=channels + 1))


REFUSED = {
    "too large": (given(30, 30, 3), "(30, 30, 3)"),
    "too small": (given(2, 2, 3), "(2, 2, 3)"),
    "not square": (given(12, 28, 3), "(12, 28, 3)"),
    "four channels": (given(28, 28, 4), "(28, 28, 4)"),
    "other widths": (given(28, 28, 3, width=64), "32 channels"),
    "one other width": (one_wide_layer(given(28, 28, 3)), "32 channels"),
    "too many steps": (given(28, 28, 3, steps=MAX_STEPS + 1), f"more than {MAX_STEPS}"),
    "float32": (given(28, 28, 3)._replace(compute="float32"), "'float32' is not 'bfloat16'"),
    "relu": (given(28, 28, 3)._replace(activation=jax.nn.relu), "not tanh"),
    "a state of bfloat16": (as_type(given(28, 28, 3), jnp.bfloat16), "not all float32"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_steps_that_no_kernel_computes_are_refused_with_the_reason(case: str):
    steps, words = REFUSED[case]
    assert words in str(HopperKernels().refusal(steps))


def test_a_device_is_refused_with_the_reason(monkeypatch):
    provider = HopperKernels()
    monkeypatch.setattr(sdebnn_hopper, "JAX", jax.__version__)
    assert provider.unavailable(H200) is None
    assert "this is NVIDIA B200" in str(provider.unavailable(B200))
    assert "compute capability 9.0" in str(provider.unavailable(jax.devices("cpu")[0]))
    with jax.enable_x64(True):
        assert "jax_enable_x64" in str(provider.unavailable(H200))
    monkeypatch.setattr(sdebnn_hopper, "JAX", "0.1.0")
    assert provider.unavailable(H200) == f"it needs jax 0.1.0; this is {jax.__version__}"


def test_the_distribution_pins_the_jax_that_the_code_asks_for():
    about = tomllib.loads((FOLDER / "pyproject.toml").read_text())["project"]
    assert f"jax=={sdebnn_hopper.JAX}" in about["dependencies"]
    assert about["optional-dependencies"]["cuda"] == [f"jax[cuda13]=={sdebnn_hopper.JAX}"]


def test_sdebnn_finds_the_built_distribution(tmp_path, monkeypatch):
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=FOLDER, check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path / "installed")
    monkeypatch.syspath_prepend(tmp_path / "installed")
    kernels.installed.cache_clear()
    try:
        (found,) = [each for each in kernels.installed() if each.name.startswith("sdebnn-hopper")]
        assert found.name == f"sdebnn-hopper {sdebnn_hopper.__version__}"
        assert isinstance(found.kernels, HopperKernels)
        assert found.name in kernels.description()
    finally:
        kernels.installed.cache_clear()


@needs_jax
def test_a_block_that_is_compiled_for_a_hopper_gpu_calls_the_kernels(monkeypatch):
    """The program is only lowered, for which no GPU is needed."""
    from sdebnn_hopper import blocks

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(sdebnn_hopper, "capability", lambda device: "9.0")
    monkeypatch.setattr(blocks, "compile_kernel", lambda kernel, shapes: None)
    provider = kernels.Installed("sdebnn-hopper", HopperKernels())
    field = TimeConv(3, compute="bfloat16", key=jax.random.key(0))
    block = bayesianize(field, drift=(2,), solver=FixedGrid(2), key=jax.random.key(0))

    def loss(h0):
        return block(h0, key=jax.random.key(1))[0].sum()

    def called(installed: tuple) -> set[str]:
        monkeypatch.setattr(kernels, "installed", lambda: installed)
        jax.clear_caches()
        traced = jax.jit(jax.grad(loss)).trace(jnp.zeros((1, 4, 4, 3)))
        return set(re.findall(r"sdebnn_(?:forward|backward)", traced.lower(lowering_platforms=("cuda",)).as_text()))

    assert called((provider,)) == {"sdebnn_forward", "sdebnn_backward"}
    assert called(()) == set()


def test_importing_the_package_does_not_import_mosaic():
    code = "import sys; import sdebnn_hopper; assert 'jax.experimental.mosaic.gpu' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env=environment())


def test_a_kernel_compiled_ahead_has_the_bytes_of_the_programs_own(monkeypatch):
    """Otherwise Mosaic would compile both. A program that does more than call one kernel is not compiled ahead."""
    from jax.experimental.pallas import mosaic_gpu  # noqa: F401, which registers the lowering

    from sdebnn_hopper import blocks

    def double(x, out):
        image = jax.lax.axis_index("image")
        blocks.store(out.at[image], 2 * x[image])

    def lowered(function, *shapes):
        return jax.jit(function, keep_unused=True).trace(*shapes).lower(lowering_platforms=("cuda",))

    begun, x = queue.Queue(), jax.ShapeDtypeStruct((3, 128), jnp.float32)
    monkeypatch.setattr(blocks, "compile_kernel", lambda kernel, shapes: begun.put((kernel, shapes)))
    how = {"name": "double", "interpret": False, "ahead": True}
    if jax.default_backend() == "cpu":
        lowered(blocks.kernel_call(double, 1, 3, [x], [], **how), x)
        assert begun.empty()  # there is no GPU to compile for
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    run = blocks.kernel_call(double, 1, 3, [x], [], **how)
    program = lowered(lambda x: run(x + 1)[0] + 1, x).as_text()
    kernel, shapes = begun.get(timeout=60)
    target, attributes = blocks._single_call(lowered(kernel, *shapes))
    assert target in program
    (called,) = re.findall(r'module = "((?:[^"\\]|\\.)*)"', program)
    (alone,) = re.findall(r'module = "((?:[^"\\]|\\.)*)"', lowered(kernel, *shapes).as_text())
    assert called == alone
    assert len(attributes["module"]) > 1000
    for more in (lambda x: run(x + 1), lambda x: run(x)[0] + 1, lambda x: [*run(x), x], lambda x, y: run(y)):
        assert blocks._single_call(lowered(more, *[x] * more.__code__.co_argcount)) is None

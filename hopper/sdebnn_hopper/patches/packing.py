"""The inputs of the fused kernels: images as rows of patches, and the convolution kernels of all steps as matrices.

An image of side 2n has n by n patches of 2 by 2 pixels; the patch in line i and column j is row p = 16 i + j of 224,
and rows outside the image are zero. A neighbour is then a row at a constant distance, and each layer is a sum of
products:

    z[p] = sum_k  x[p + offset_k, column_k :] W[row_k :]  +  onehot(class of p) M

with W a layer's kernel and M the contribution of time and bias. M depends only on the border: on whether the patch is
in the first, an inner or the last line, and likewise for its column, which makes nine classes. The adjoint of a layer
is the same table of terms, with every offset negated and every block of W transposed.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, BFloat16, Float

from sdebnn.convolutions.kernels import Images, LayerArrays
from sdebnn.convolutions.operations import Move, squeeze, taps, unsqueeze

LINES, LINE = 14, 16  # a line ends with two columns of zeros, so that its last patch has no neighbour in the next line
POSITIONS = LINES * LINE
CHANNELS, WIDTH = 3, 32  # of the state, and between the layers
STATE = 16  # numbers in a row of the state: 12 of a patch, then marks
FIRST_MARK = 4  # the first column of the classes in ``marks``, so that a row's state and its marks can be read together
PARITIES = tuple((e, f) for e in range(2) for f in range(2))  # of a pixel within its patch

Kernel = Float[Array, "step 3 3 _ _"]
PatchRows = Float[Array, "example 224 16"]
Matrix = Float[Array, "step _ 32"]
Matrices = tuple[BFloat16[Array, "step _ 32"], ...]
States = BFloat16[Array, "step example 224 16"]


class Term(NamedTuple):
    """A product: the numbers of row p + ``offset`` from ``column`` on times the block of the matrix from ``row`` on."""

    offset: int
    column: int
    row: int


class Table(NamedTuple):
    """A layer as products: the terms for each parity of the output, or for the whole output if it is one per patch.

    A term takes ``given`` numbers and makes ``made`` numbers, by a block of the matrix of shape (given, made), or
    (made, given) if ``transposed``. ``maps`` are the rows of the blocks of the classes.
    """

    given: int
    made: int
    terms: tuple[tuple[Term, ...], ...]
    maps: tuple[int, ...]
    transposed: bool = False

    @property
    def offsets(self) -> tuple[int, ...]:
        return tuple(sorted({term.offset for terms in self.terms for term in terms}))

    @property
    def adjoint(self) -> "Table":
        """The table that maps the cotangent of the output to that of the source. Each term is reversed."""
        columns = sorted({term.column for terms in self.terms for term in terms})
        terms = tuple(
            tuple(
                Term(-term.offset, WIDTH * parity, term.row)
                for parity, terms in enumerate(self.terms)
                for term in terms
                if term.column == column
            )
            for column in columns
        )
        return Table(self.made, self.given, terms, (), not self.transposed)


# same: the 2 x 2 patches that hold the 4 x 4 pixels around a pixel of each parity
FIRST = Table(
    STATE,
    WIDTH,
    tuple(
        tuple(
            Term(LINE * (e - 1 + i) + f - 1 + j, 0, STATE * (5 * parity + 2 * i + j))
            for i in range(2)
            for j in range(2)
        )
        for parity, (e, f) in enumerate(PARITIES)
    ),
    tuple(STATE * (5 * parity + 4) for parity in range(4)),
)
# down: nine taps; pixel 2 p + i is of parity i % 2, in the patch p + i // 2
SECOND = Table(
    WIDTH,
    WIDTH,
    (
        tuple(
            Term(LINE * (i // 2) + j // 2, WIDTH * (2 * (i % 2) + j % 2), WIDTH * (3 * i + j))
            for i in range(3)
            for j in range(3)
        ),
    ),
    (9 * WIDTH,),
)
# up: pixel 2 p + e reads the patch p - u by the tap 2 u + e of the flipped kernel
THIRD = Table(
    WIDTH,
    WIDTH,
    tuple(
        tuple(Term(-LINE * u - v, 0, WIDTH * (3 * (2 * u + e) + 2 * v + f)) for u in range(2 - e) for v in range(2 - f))
        for e, f in PARITIES
    ),
    tuple(9 * WIDTH + 16 * parity for parity in range(4)),
)
# same: all parities at once, from the 4 x 4 pixels around the patch; the first of them has parity 1 in the patch before
FOURTH = Table(
    WIDTH,
    STATE,
    (
        tuple(
            Term(
                LINE * ((i + 1) // 2 - 1) + (j + 1) // 2 - 1,
                WIDTH * (2 * ((i + 1) % 2) + (j + 1) % 2),
                STATE * (4 * i + j),
            )
            for i in range(4)
            for j in range(4)
        ),
    ),
    (16 * STATE,),
    transposed=True,
)
HEIGHTS = (20 * STATE, 9 * WIDTH + 16, 9 * WIDTH + 4 * 16, 17 * STATE)  # rows of each layer's matrix for one step


def rows_of(images: Images) -> PatchRows:
    """The patches of images as rows, whose last four numbers are zero."""
    count, side, _, channels = images.shape
    n = side // 2
    patches = jax.vmap(squeeze)(images)
    after = (LINES - n, LINE - n, STATE - 4 * channels)
    return jnp.pad(patches, ((0, 0), *((0, more) for more in after))).reshape(count, POSITIONS, STATE)


def images_of(rows: PatchRows, side: int) -> Images:
    """The inverse of ``rows_of``."""
    count, n = rows.shape[0], side // 2
    patches = rows.reshape(count, LINES, LINE, STATE)[:, :n, :n, : 4 * CHANNELS]
    return jax.vmap(unsqueeze)(patches)


def marks(side: int) -> Float[np.ndarray, "224 16"]:
    """The class of every position, one-hot from column ``FIRST_MARK`` on; zero outside the image."""
    line, column = np.divmod(np.arange(POSITIONS), LINE)
    n = side // 2

    def kind(at: np.ndarray) -> np.ndarray:
        return np.where(at == 0, 0, np.where(at == n - 1, 2, 1))

    table = np.zeros((POSITIONS, 16), np.float32)
    table[np.arange(POSITIONS), FIRST_MARK + 3 * kind(line) + kind(column)] = 1
    table[(line >= n) | (column >= n)] = 0
    return table


def marked(rows: PatchRows, side: int) -> PatchRows:
    """The rows of a state, with the marks of the first classes in the columns that a patch does not use."""
    free = 4 * CHANNELS
    first = jnp.asarray(marks(side)[:, FIRST_MARK : FIRST_MARK + STATE - free], rows.dtype)
    return rows.at[:, :, free:].set(first)


def _maps(
    time: Float[Array, "step 3 3 out"], bias: Float[Array, "step out"], move: Move
) -> Float[Array, "step parity 16 out"]:
    """The contribution of time and bias to each class of positions, at t = 0, 1/steps, 2/steps and so on."""
    steps, out = bias.shape
    side, parities = (3 if move == "up" else 6), (1 if move == "down" else 2)
    # An image of three by three patches has one of every class. This is a sum and not a matrix product, because XLA
    # tries dozens of algorithms for each product, even for a small one.
    met = taps(side, side, move).reshape(3, parities, 3, parities, 9).transpose(1, 3, 0, 2, 4).reshape(-1, 9, 9)
    of_time = jnp.sum(jnp.asarray(met, bias.dtype)[..., None] * time.reshape(steps, 1, 1, 9, out), 3)
    t = jnp.arange(steps, dtype=bias.dtype) / steps
    added = bias[:, None, None] + t[:, None, None, None] * of_time
    return jnp.pad(added, ((0, 0), (0, 0), (FIRST_MARK, 7 - FIRST_MARK), (0, 0)))


def _windows(kernel: Kernel, starts: Sequence[tuple[int, int]]) -> Float[Array, "step parity 4 4 _ _"]:
    """For each parity, a window of 4 x 4 taps of the kernel with a border of zeros."""
    padded = jnp.pad(kernel, ((0, 0), (1, 1), (1, 1), (0, 0), (0, 0)))
    return jnp.stack([padded[:, x : x + 4, y : y + 4] for x, y in starts], 1)


def _first(kernel: Kernel, time: Array, bias: Array) -> Matrix:
    steps, free = kernel.shape[0], STATE - 4 * CHANNELS
    windows = _windows(kernel, PARITIES).reshape(steps, 4, 2, 2, 2, 2, CHANNELS, WIDTH)
    patches = windows.transpose(0, 1, 2, 4, 3, 5, 6, 7).reshape(steps, 4, 4, 4 * CHANNELS, WIDTH)
    blocks = jnp.pad(patches, ((0, 0), (0, 0), (0, 0), (0, free), (0, 0))).reshape(steps, 4, -1, WIDTH)
    return jnp.concatenate([blocks, _maps(time, bias, "same")], 2).reshape(steps, -1, WIDTH)


def _inner(kernel: Kernel, time: Array, bias: Array, move: Move) -> Matrix:
    steps = kernel.shape[0]
    flipped = kernel[:, ::-1, ::-1] if move == "up" else kernel
    maps = _maps(time, bias, move).reshape(steps, -1, WIDTH)
    return jnp.concatenate([flipped.reshape(steps, -1, WIDTH), maps], 1)


def _fourth(kernel: Kernel, time: Array, bias: Array) -> Matrix:
    steps, free = kernel.shape[0], STATE - 4 * CHANNELS
    windows = _windows(kernel, [(1 - e, 1 - f) for e, f in PARITIES])
    blocks = windows.transpose(0, 2, 3, 1, 5, 4).reshape(steps, 16, 4 * CHANNELS, WIDTH)
    blocks = jnp.pad(blocks, ((0, 0), (0, 0), (0, free), (0, 0))).reshape(steps, -1, WIDTH)
    maps = _maps(time, bias, "same").transpose(0, 1, 3, 2).reshape(steps, 4 * CHANNELS, 16)
    return jnp.concatenate([blocks, jnp.pad(maps, ((0, 0), (0, free), (0, WIDTH - 16)))], 1)


def packed(layers: Sequence[LayerArrays]) -> tuple[Matrix, ...]:
    """The matrices of the four layers for every step, including the maps of time and bias. Linear in the layers."""
    first, second, third, fourth = layers
    return _first(*first), _inner(*second, "down"), _inner(*third, "up"), _fourth(*fourth)

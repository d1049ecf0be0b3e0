"""What the fused kernels take: images as rows of patches, and the kernels of all steps as matrices.

An image of side 2n is n by n patches of 2 by 2 pixels; the patch in line i and column j is row p = 16 i + j of 224, and
rows beyond the image are zero. A neighbour is then a row at a constant distance, and each layer is a sum of products:

    z[p] = sum_k  x[p + offset_k, column_k :] W[row_k :]  +  onehot(class of p) M

with W a layer's kernel and M what time and bias add. M depends on the border alone: on whether the patch is in the
first, an inner or the last line, and likewise column, which makes nine classes. The adjoint of a layer is the same
table of terms, with every offset turned round and every block of W transposed.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, BFloat16, Float

from sdebnn.convolutions.operations import Move, squeeze, taps, unsqueeze

LINES, LINE = 14, 16  # a line has two columns of zeros, so that the neighbour of its last patch is not the next line's
POSITIONS = LINES * LINE
CHANNELS, WIDTH = 3, 32  # of the state, and between the layers
STATE = 16  # numbers of a row of the state: 12 of a patch, then marks
MARK = 4  # the first column of the classes in ``marks``, so that a row's state and its marks can be read together
PARITIES = tuple((e, f) for e in range(2) for f in range(2))  # of a pixel within its patch

Kernel = Float[Array, "step 3 3 _ _"]
Layer = tuple[Kernel, Float[Array, "step 3 3 _"], Float[Array, "step _"]]  # kernel, time, bias
Images = Float[Array, "example height width channel"]
Rows = Float[Array, "example 224 16"]
Matrix = Float[Array, "step _ 32"]
Matrices = tuple[BFloat16[Array, "step _ 32"], ...]
States = BFloat16[Array, "step example 224 16"]


class Term(NamedTuple):
    """The numbers of row p + ``offset`` from ``column`` on, times the block of the matrix from ``row`` on."""

    offset: int
    column: int
    row: int


class Table(NamedTuple):
    """A layer as products: the terms of each parity of the outcome, or of the whole outcome where it is one per patch.

    A term takes ``given`` numbers and makes ``made``, by a block of given x made numbers of the matrix (made x given,
    where ``transposed``). ``maps`` are the rows of the classes' blocks.
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
        """From the outcome's cotangent to the source's: a term for each, the other way."""
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


# same: the two by two patches that hold the 4 x 4 pixels around those of one parity
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
# up: pixel 2 p + e is met by the taps 2 u + e of the turned kernel, from the patch p - u
THIRD = Table(
    WIDTH,
    WIDTH,
    tuple(
        tuple(Term(-LINE * u - v, 0, WIDTH * (3 * (2 * u + e) + 2 * v + f)) for u in range(2 - e) for v in range(2 - f))
        for e, f in PARITIES
    ),
    tuple(9 * WIDTH + 16 * parity for parity in range(4)),
)
# same: all parities at once, from the 4 x 4 pixels around the patch, the first of them of parity 1 in the patch before
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
HEIGHTS = (20 * STATE, 9 * WIDTH + 16, 9 * WIDTH + 4 * 16, 17 * STATE)  # rows of a step's matrix of each layer


def rows_of(images: Images) -> Rows:
    """The patches of images, each a row; the last four of its numbers are zero."""
    count, side, _, channels = images.shape
    n = side // 2
    patches = jax.vmap(squeeze)(images)
    after = (LINES - n, LINE - n, STATE - 4 * channels)
    return jnp.pad(patches, ((0, 0), *((0, more) for more in after))).reshape(count, POSITIONS, STATE)


def images_of(rows: Rows, side: int) -> Images:
    """The inverse of ``rows_of``."""
    count, n = rows.shape[0], side // 2
    patches = rows.reshape(count, LINES, LINE, STATE)[:, :n, :n, : 4 * CHANNELS]
    return jax.vmap(unsqueeze)(patches)


def marks(side: int) -> Float[np.ndarray, "224 16"]:
    """The class of every position, one-hot from column ``MARK`` on; zero beyond the image."""
    line, column = np.divmod(np.arange(POSITIONS), LINE)
    n = side // 2

    def kind(at: np.ndarray) -> np.ndarray:
        return np.where(at == 0, 0, np.where(at == n - 1, 2, 1))

    table = np.zeros((POSITIONS, 16), np.float32)
    table[np.arange(POSITIONS), MARK + 3 * kind(line) + kind(column)] = 1
    table[(line >= n) | (column >= n)] = 0
    return table


def marked(rows: Rows, side: int) -> Rows:
    """The rows of a state, with the first classes in the columns that a patch leaves free."""
    free = 4 * CHANNELS
    first = jnp.asarray(marks(side)[:, MARK : MARK + STATE - free], rows.dtype)
    return rows.at[:, :, free:].set(first)


def _maps(
    time: Float[Array, "step 3 3 out"], bias: Float[Array, "step out"], move: Move
) -> Float[Array, "step parity 16 out"]:
    """What time and bias add to each class of positions, at t = 0, 1/steps, 2/steps and so on."""
    steps, out = bias.shape
    side, parities = (3 if move == "up" else 6), (1 if move == "down" else 2)
    # An image of three patches has one of every class. A sum, not a product: of those XLA tries dozens before it
    # settles for one, even where there is little to multiply.
    met = taps(side, side, move).reshape(3, parities, 3, parities, 9).transpose(1, 3, 0, 2, 4).reshape(-1, 9, 9)
    of_time = jnp.sum(jnp.asarray(met, bias.dtype)[..., None] * time.reshape(steps, 1, 1, 9, out), 3)
    t = jnp.arange(steps, dtype=bias.dtype) / steps
    added = bias[:, None, None] + t[:, None, None, None] * of_time
    return jnp.pad(added, ((0, 0), (0, 0), (MARK, 7 - MARK), (0, 0)))


def _windows(kernel: Kernel, starts: Sequence[tuple[int, int]]) -> Float[Array, "step parity 4 4 _ _"]:
    """For each parity the 4 x 4 taps from a start on, of the kernel with a border of zeros."""
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
    turned = kernel[:, ::-1, ::-1] if move == "up" else kernel
    maps = _maps(time, bias, move).reshape(steps, -1, WIDTH)
    return jnp.concatenate([turned.reshape(steps, -1, WIDTH), maps], 1)


def _fourth(kernel: Kernel, time: Array, bias: Array) -> Matrix:
    steps, free = kernel.shape[0], STATE - 4 * CHANNELS
    windows = _windows(kernel, [(1 - e, 1 - f) for e, f in PARITIES])
    blocks = windows.transpose(0, 2, 3, 1, 5, 4).reshape(steps, 16, 4 * CHANNELS, WIDTH)
    blocks = jnp.pad(blocks, ((0, 0), (0, 0), (0, free), (0, 0))).reshape(steps, -1, WIDTH)
    maps = _maps(time, bias, "same").transpose(0, 1, 3, 2).reshape(steps, 4 * CHANNELS, 16)
    return jnp.concatenate([blocks, jnp.pad(maps, ((0, 0), (0, free), (0, WIDTH - 16)))], 1)


def packed(layers: Sequence[Layer]) -> tuple[Matrix, ...]:
    """The four layers' matrices of every step, with the maps of their time and bias. Linear in the layers."""
    first, second, third, fourth = layers
    return _first(*first), _inner(*second, "down"), _inner(*third, "up"), _fourth(*fourth)

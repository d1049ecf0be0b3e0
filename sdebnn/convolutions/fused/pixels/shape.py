"""What the kernels of one block are made for: an image as rows of pixels, and who computes which of them.

An image of side 2n is four images of n by n pixels, one of each parity (e, f) of line and column; the pixel
(2i + e, 2j + f) is row (2e + f) n^2 + n i + j. So 16 neighbouring rows of an image have 16 neighbouring rows at any tap
of a kernel, of stride 1 or 2, and no two of eight meet in the same banks of shared memory.

Between layers a pixel has 64 channels, a row of 128 bytes. The state has C of them, in chunks of 8: a chunk of all
pixels, then the next.
"""

from typing import NamedTuple

WIDTH = 64  # channels between layers
ROW = 2 * WIDTH  # bytes
TILE = 64  # rows of a wgmma's outcome
GROUPS = 4  # warpgroups
TAPS = tuple((i, j) for i in range(3) for j in range(3))
CLASSES = 16  # of pixels, by their borders: nine, and more rows of zeros
PARITIES = tuple((e, f) for e in range(2) for f in range(2))


class Shape(NamedTuple):
    """A block: the side of its images, and the channels of its state."""

    side: int
    channels: int

    @property
    def small(self) -> int:
        """The side of the images between the second layer and the third."""
        return self.side // 2

    @property
    def pixels(self) -> int:
        return self.side**2

    @property
    def few(self) -> int:
        """The pixels of a small image, or of one parity."""
        return self.small**2

    @property
    def chunks(self) -> int:
        return -(-self.channels // 8)

    @property
    def planes(self) -> int:
        """Chunks in shared memory: a product takes 16 channels at a time, or, of a single chunk, two taps."""
        return 1 if self.chunks == 1 else 2 * -(-self.chunks // 2)

    @property
    def tiles(self) -> int:
        """Tiles of pixels that a warpgroup computes, where it computes some of them; else all compute the same."""
        return max(self.pixels // TILE // GROUPS, 1)

    @property
    def shared(self) -> bool:
        """Whether the pixels are shared out among the warpgroups, rather than channels."""
        return self.pixels >= GROUPS * TILE

    @property
    def few_shared(self) -> bool:
        """The same of small images."""
        return self.few >= GROUPS * TILE

    @property
    def made(self) -> int:
        """Channels of the state that a warpgroup computes."""
        return 8 * self.chunks if self.shared else 8 * -(-self.chunks // GROUPS)

    @property
    def columns(self) -> int:
        """Channels of the state in global memory."""
        return self.made if self.shared else GROUPS * self.made

    @property
    def height(self) -> int:
        """Rows of a tap of the first and the last layer's matrix: a row for each channel of the state, and more."""
        return max(self.columns, 8 * self.planes)

    @property
    def taps_of_slot(self) -> int:
        return max(1, TILE // self.height)

    @property
    def slot(self) -> int:
        """Bytes of the largest piece of the matrices that is fetched at once."""
        return ROW * max(TILE, self.height)

    @property
    def ring(self) -> int:
        """How many such pieces are on the chip together: a power of two."""
        return 4 if self.side > 16 else 8

    @property
    def both(self) -> bool:
        """Whether two activations of all pixels fit on the chip."""
        return self.side <= 16

    @property
    def by_lines(self) -> bool:
        """Whether 16 pixels of a line, of one parity, are a warp's: then it computes four lines of the state together.

        Group 2 k + f and warp w have the columns of parity f in lines 16 k + 4 w + 0, 1, 2, 3, one in each tile.
        """
        return self.small == 16 and self.tiles == 4

    @property
    def exchange(self) -> int:
        """Bytes of what groups tell each other, where they share the taps: sums of all columns but each one's own."""
        if self.few_shared:
            return 0
        return GROUPS * (GROUPS - 1) * TILE * 4 * max(WIDTH // GROUPS, 0 if self.shared else self.made)

    @property
    def halves(self) -> int:
        """Parts of the pixels, of which the gradients of the outer layers are summed apart: one for each group."""
        return max(1, GROUPS // self.tiles_of(2))

    def tiles_of(self, more: int) -> int:
        """Tiles of 64 rows that hold all taps of all chunks, and some more."""
        return -(-(9 * self.chunks + more) // 8)


SHAPES = (Shape(32, 5), Shape(16, 20), Shape(8, 80))

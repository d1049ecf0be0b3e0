"""The convolutions of one training step in PyTorch; ``images.py`` runs this process and asks it for times.

For every line "nchw" or "channels_last" on standard input, it times one forward and backward pass through 20 Euler
steps of the paper's field, with gradients for the images and each step's kernels, and prints the seconds. It has no
weight path, KL, time channel, head, likelihood or optimiser, so it does less work than a training step.
"""

import os
import sys
import time

import torch
import torch.nn.functional as F  # noqa: N812

BATCH, STEPS, CHANNELS, WIDTH = 128, 20, 3, 32
torch.set_num_threads(os.cpu_count() or 1)
torch.manual_seed(0)


def arrays(layout: torch.memory_format) -> tuple[torch.Tensor, list[list[torch.Tensor]]]:
    """The images, and four kernels for each step."""

    def leaf(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (scale * torch.randn(*shape)).to(memory_format=layout).requires_grad_()

    sizes = ((WIDTH, CHANNELS), (WIDTH, WIDTH), (WIDTH, WIDTH), (CHANNELS, WIDTH))
    return leaf(BATCH, CHANNELS, 28, 28), [[leaf(*size, 3, 3, scale=0.1) for size in sizes] for _ in range(STEPS)]


def gradient(images: torch.Tensor, kernels: list[list[torch.Tensor]]) -> tuple[torch.Tensor, ...]:
    h = images
    for same, down, up, last in kernels:
        z = torch.tanh(F.conv2d(h, same, padding=1))
        z = torch.tanh(F.conv2d(z, down, stride=2, padding=1))
        z = torch.tanh(F.conv_transpose2d(z, up, stride=2, padding=1, output_padding=1))
        h = h + F.conv2d(z, last, padding=1) / STEPS
    return torch.autograd.grad((h * h).mean(), [images, *(k for step in kernels for k in step)])


if __name__ == "__main__":
    layouts = {"nchw": arrays(torch.contiguous_format), "channels_last": arrays(torch.channels_last)}
    print(torch.__version__, torch.get_num_threads(), flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        gradient(*layouts[line.strip()])
        print(time.perf_counter() - start, flush=True)

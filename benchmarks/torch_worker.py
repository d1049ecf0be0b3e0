"""The worker for torchsde's row of the table: ``python torch_worker.py FOLDER``, with ``jobs.exported`` in FOLDER.

It is written as torchsde's documentation suggests: (w, h, KL) of all draws as one state, noise only on w by ``g_prod``,
a BrownianInterval, Euler, backpropagation through the solver, and Adam (at rate 0, so that the net does not change).
"""

import json
import math
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
import torchsde
import worker_io
from torch import nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Block(nn.Module):
    """dw = (NN - w) dt + σ dB, dh = f_h(t, h, w) dt, dKL = ½|NN/σ|² dt."""

    noise_type, sde_type = "general", "ito"

    def __init__(self, about: dict, arrays: dict[str, torch.Tensor], steps: int):
        super().__init__()
        self.about, self.steps = about, steps
        self.w0 = nn.Parameter(arrays["w0"])
        self.drift = nn.ModuleList(
            nn.ParameterDict({name: arrays[f"{j}.{name}"] for name in ("weight", "bias", "gate", "gate_bias", "shift")})
            for j in range(about["drift"])
        )

    def correction(self, t: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for j, p in enumerate(self.drift):
            w = F.linear(w, p["weight"], p["bias"]) * torch.sigmoid(p["gate"] * t + p["gate_bias"]) + p["shift"] * t
            w = torch.tanh(w) if j < len(self.drift) - 1 else w
        return w

    def f(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        w, h = y[:, : self.size], y[:, self.size : -1].reshape(-1, *self.shape)
        correction = self.correction(t, w)
        slope = (self.images if self.about["moves"] else self.vectors)(t, h, self.arrays(w))
        kl = 0.5 * ((correction / self.about["sigma"]) ** 2).sum(1, keepdim=True)
        return torch.cat([correction - w, slope.reshape(len(y), -1), kl], 1)

    def g_prod(self, t: torch.Tensor, y: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.pad(self.about["sigma"] * v, (0, y.shape[1] - self.size))

    def arrays(self, w: torch.Tensor) -> list[torch.Tensor]:
        sizes = [math.prod(shape) for shape in self.about["shapes"]]
        parts = zip(w.split(sizes, 1), self.about["shapes"], self.about["scales"], strict=True)
        return [scale * part.reshape(-1, *shape) for part, shape, scale in parts]

    def vectors(self, t: torch.Tensor, h: torch.Tensor, arrays: list[torch.Tensor]) -> torch.Tensor:
        time_input = t.expand(*h.shape[:2], 1)
        layers = list(zip(arrays[::2], arrays[1::2], strict=True))
        h = torch.cat([h, time_input], 2)
        for weight, bias in layers[:-1]:
            h = torch.tanh(torch.baddbmm(bias[:, None], h, weight.transpose(1, 2)))
        weight, bias = layers[-1]
        return torch.baddbmm(bias[:, None], h, weight.transpose(1, 2))

    def images(self, t: torch.Tensor, h: torch.Tensor, arrays: list[torch.Tensor]) -> torch.Tensor:
        h = h[0]
        for j, move in enumerate(self.about["moves"]):
            kernel, of_time, bias = (array[0] for array in arrays[3 * j : 3 * j + 3])
            kernel = torch.cat([kernel, of_time[:, :, None]], 2)  # height, width, in, out
            x = torch.cat([h, t.expand(len(h), 1, *h.shape[2:])], 1)
            if move == "up":
                h = F.conv_transpose2d(x, kernel.flip(0, 1).permute(2, 3, 0, 1), stride=2)[..., :-1, :-1]
            elif move == "down":
                h = F.conv2d(F.pad(x, (0, 1, 0, 1)), kernel.permute(3, 2, 0, 1), stride=2)
            else:
                h = F.conv2d(x, kernel.permute(3, 2, 0, 1), padding=1)
            h = h + bias[:, None, None]
            h = torch.tanh(h) if j < len(self.about["moves"]) - 1 else h
        return h

    def forward(self, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """h has the draws as first axis; for images there is one draw, and channels come before pixels."""
        draws, self.shape, self.size = len(h), h.shape[1:], len(self.w0)
        start = torch.cat([self.w0.expand(draws, -1), h.reshape(draws, -1), h.new_zeros(draws, 1)], 1)
        brownian = torchsde.BrownianInterval(0.0, 1.0, size=(draws, self.size), device=h.device)
        ends = torch.tensor([0.0, 1.0], device=h.device)
        end = torchsde.sdeint(self, start, ends, bm=brownian, method="euler", dt=1 / self.steps)[-1]
        return end[:, self.size : -1].reshape(h.shape), end[:, -1]


class Net(nn.Module):
    """The layers that ``jobs.exported`` describes, on a batch that all draws share."""

    def __init__(self, about: dict, arrays: dict[str, torch.Tensor]):
        super().__init__()
        self.about = about
        self.parts = nn.ModuleDict()
        for i, layer in enumerate(about["layers"]):
            own = {name[len(f"{i}.") :]: value for name, value in arrays.items() if name.startswith(f"{i}.")}
            if layer["kind"] == "block":
                self.parts[str(i)] = Block(layer, own, about["steps"])
            elif own:
                self.parts[str(i)] = nn.ParameterDict(own)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h, total = x.expand(self.about["draws"], *x.shape), torch.zeros((), device=x.device)
        for i, layer in enumerate(self.about["layers"]):
            h, kl = self.layer(i, layer, h)
            total = total + kl
        return h, total

    def layer(self, i: int, layer: dict, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | float]:
        if layer["kind"] == "block":
            return self.parts[str(i)](h)
        if layer["kind"] == "augment":
            return F.pad(h, (0, layer["zeros"])), 0.0
        if layer["kind"] == "pixels":  # draw, example, height, width, channel -> draw, example, channel, height, width
            mean, std = (torch.tensor(layer[name], device=h.device) for name in ("mean", "std"))
            return F.pad((h / 255 - mean) / std, (0, layer["zeros"])).movedim(-1, 2), 0.0
        if layer["kind"] == "squeeze":
            d, n, c, height, width = h.shape
            patches = h.reshape(d, n, c, height // 2, 2, width // 2, 2).permute(0, 1, 4, 6, 2, 3, 5)
            return patches.reshape(d, n, 4 * c, height // 2, width // 2), 0.0
        if layer["kind"] == "ravel":
            return h.movedim(2, -1).flatten(2), 0.0
        if layer["kind"] == "readout":
            own = self.parts[str(i)]
            return F.linear(h, own["weight"] / math.sqrt(h.shape[-1]), own["bias"]), 0.0
        return h[..., :1], 0.0


def loss(net: Net, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    outputs, kl = net(x)
    if net.about["classes"]:
        log_prob = outputs.log_softmax(-1).gather(-1, y.expand(len(outputs), -1)[..., None]).sum((1, 2))
    else:
        noise = net.about["noise"]
        log_prob = (-0.5 * ((y - outputs) / noise) ** 2 - math.log(noise) - 0.5 * math.log(2 * math.pi)).sum((1, 2))
    return (kl - log_prob).mean()


def resident(which: str) -> float:
    """MiB of memory that this process uses now (VmRSS), or at its peak (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(which)) / 2**10


def main() -> None:
    folder = Path(sys.argv[1])
    about = json.loads((folder / "about.json").read_text())
    with np.load(folder / "arrays.npz") as file:
        arrays = {name: torch.from_numpy(file[name]).to(DEVICE) for name in file.files}
    torch.manual_seed(1)
    torch.set_num_threads(os.cpu_count() or 1)
    x, y = arrays.pop("x"), arrays.pop("y").long() if about["classes"] else arrays.pop("y")
    net = Net(about, arrays).to(DEVICE)
    adam = torch.optim.Adam(net.parameters(), lr=0.0)

    def wait() -> None:
        if DEVICE == "cuda":
            torch.cuda.synchronize()

    def trained(n: int) -> list[float]:
        values = []
        for _ in range(n):
            adam.zero_grad()
            value = loss(net, x, y)
            value.backward()
            adam.step()
            values.append(value.detach())
        wait()
        return [float(value) for value in values]

    def predicted(n: int) -> list[float]:
        with torch.no_grad():
            for _ in range(n):
                net(x)
        wait()
        return []

    if DEVICE == "cpu":
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak resident size
    before = resident("VmRSS")
    clock = time.perf_counter()
    trained(1)
    first = {"compile_s": 0.0, "first_step_s": time.perf_counter() - clock, "torch": torch.__version__}
    peak = torch.cuda.max_memory_allocated() / 2**20 if DEVICE == "cuda" else resident("VmHWM") - before
    first["memory_mib"] = peak
    if DEVICE == "cuda":
        torch.cuda.empty_cache()  # leaves the memory to other workers
    worker_io.answer(first, {"train": trained, "predict": predicted})


if __name__ == "__main__":
    main()

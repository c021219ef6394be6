"""Messages between stages without loss: the codec against zfp, zlib and blosc, and steps of pipelines between hosts.

The codec packs and unpacks activations and gradients of two models in the middle of their training; the rivals are
zfp's reversible mode, zlib at its fastest, and, if it is installed, blosc2 with its bit shuffle and lz4 or zstd. A row
compares the times of packing and unpacking one after the other; the sizes are printed.

The steps are those of two stages, each on a host of the laboratory: convolutions with ReLU, and layers of a transformer
in single and half precision. Activations and gradients are packed in one contender and sent as they are in the other.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import zfpy
from claim import Options, PartResults, measure_jobs, option, run_claim
from lab import Lab
from libraries import job, lab_job
from torch import nn

import hocket as hk
from hocket import _native, train
from hocket.measure import Comparison, Contender, pin, serve
from hocket.measure.loops import looped

CODEC, SLOW, FAST = "codec", "1 Gbit/s", "10 Gbit/s"
PLACES = (CODEC, SLOW, FAST)
OURS, PACKED, AS_THEY_ARE = "hocket", "lossless", "as they are"
SAMPLES = {"convolutions": 16, "transformer": 8, "transformer, bfloat16": 8}
NUM_MICRO_BATCHES = 4


class _Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.attention(self.norms[0](x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.wide(self.norms[1](x))))


def model_of(case: str) -> tuple[nn.Sequential, int, torch.Tensor]:
    """Return a model, the number of layers of its first stage, and inputs of a micro-batch."""
    torch.manual_seed(0)
    if case == "convolutions":
        layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
        layers += [nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
        layers += [nn.Flatten(), nn.Linear(32, 10)]
        return nn.Sequential(*layers), 3, torch.randn(SAMPLES[case], 3, 32, 32)
    width = 128
    model = nn.Sequential(*(_Block(width) for _ in range(4)), nn.Linear(width, 64))
    inputs = torch.randn(SAMPLES[case], 128, width)
    return (model.bfloat16(), 2, inputs.bfloat16()) if "bfloat16" in case else (model, 2, inputs)


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output.float() - target).square().mean()


def target_of(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return torch.randn_like(model(inputs).float())


def messages_of(case: str, num_steps: int = 20) -> dict[str, torch.Tensor]:
    """Return what stages send each other after some steps of training: an activation and its gradient."""
    model, cut, inputs = model_of(case)
    optimizer, target = torch.optim.SGD(model.parameters(), lr=0.05), target_of(model, inputs)
    for _ in range(num_steps):
        optimizer.zero_grad()
        value = model[:cut](inputs).detach().requires_grad_()
        loss(model[cut:](value), target).backward()
        gradient = value.grad
        assert gradient is not None
        model[:cut](inputs).backward(gradient)
        optimizer.step()
    return {f"activation of {case}": value.detach().contiguous(), f"gradient of {case}": gradient.contiguous()}


def codecs(tensor: torch.Tensor) -> Iterator[tuple[str, Callable[[], bytes | np.ndarray], Callable[[Any], object]]]:
    """Yield the codecs: name, packing, unpacking. zfp has no type of 16 bits."""
    raw = tensor.view(torch.uint8).flatten().numpy()
    name = str(tensor.dtype).removeprefix("torch.")
    room, back = np.empty(_native.most_packed_nbytes(name, len(raw)), np.uint8), np.empty_like(raw)

    def unpack(packed: np.ndarray) -> bool:
        return _native.unpack_lossless(packed, name, back)

    yield OURS, lambda: room[: _native.pack_lossless(raw, name, room)], unpack
    if tensor.dtype == torch.float32:
        yield "zfp", partial(zfpy.compress_numpy, tensor.flatten().numpy()), zfpy.decompress_numpy
    yield "zlib", partial(zlib.compress, raw.tobytes(), 1), zlib.decompress
    try:
        import blosc2
    except ImportError:
        return
    for codec in (blosc2.Codec.LZ4, blosc2.Codec.ZSTD):
        options = {"codec": codec, "filter": blosc2.Filter.BITSHUFFLE, "clevel": 1, "typesize": tensor.itemsize}
        pack = partial(blosc2.compress, raw.tobytes(), **options)
        yield f"blosc, {codec.name.lower()}", pack, blosc2.decompress


def serve_codecs() -> None:
    """Offer packing and unpacking of every message."""
    torch.set_num_threads(1)
    pin(0)
    contenders = []
    for case in SAMPLES:
        for what, tensor in messages_of(case).items():
            for name, pack, unpack in codecs(tensor):
                contenders.append(Contender(what, name, looped(lambda pack=pack, unpack=unpack: unpack(pack()))))
    serve(contenders, 0, lambda: None)


def serve_rank(_: str, place: str) -> None:
    """Run one rank."""
    if place == CODEC:
        serve_codecs()
        return
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    with hk.init(timeout=120) as comm:
        pin(comm.rank)
        contenders, executors = [], []
        for case in SAMPLES:
            for messages in (None, "lossless"):
                model, cut, inputs = model_of(case)
                target = target_of(model, inputs)
                split = train.graph_of(model).split([0, cut, len(model)])
                schedule = hk.pipeline.build("1f1b", num_ranks=2, num_micro_batches=NUM_MICRO_BATCHES)
                executor = train.PipelineExecutor(schedule, split, comm, loss, messages=messages)
                batch = [train.MicroBatch({split.batch_inputs[0]: inputs}, target, weight=1 / NUM_MICRO_BATCHES)]
                step = partial(executor.step, batch * NUM_MICRO_BATCHES)
                for _ in range(3):
                    step()
                contenders.append(Contender(case, PACKED if messages else AS_THEY_ARE, looped(step)))
                executors.append(executor)
        serve(contenders, comm.rank, comm.barrier)
        for executor in executors:
            print(executor.explain_messages(), flush=True)
            executor.close()


def print_sizes() -> None:
    """Print what each codec makes of each message."""
    for case in SAMPLES:
        for what, tensor in messages_of(case).items():
            nbytes = tensor.numel() * tensor.itemsize
            sizes = ", ".join(f"{name} {len(pack()) / nbytes:.1%}" for name, pack, _ in codecs(tensor))
            print(f"{what}, {nbytes >> 10} KiB: {sizes}")


def codec_comparisons() -> Iterator[Comparison]:
    for case in SAMPLES:
        for what, tensor in messages_of(case, num_steps=1).items():
            for rival in [name for name, *_ in codecs(tensor)][1:]:
                yield Comparison(what, OURS, (rival,), 1.0, unit="ms", needs_cores=False)


def step_comparisons(place: str) -> Iterator[Comparison]:
    for case in SAMPLES:
        target = 1.0 if place == SLOW else None
        yield Comparison(case, PACKED, (AS_THEY_ARE,), target, label=f"{place}: {case}", unit="ms", needs_cores=False)


def parts(options: Options) -> PartResults:
    for place in options.place or PLACES:
        if place == CODEC:
            measurement = measure_jobs([job("hocket", __file__, [CODEC], 1)], place, options.settings)
            print_sizes()
            yield codec_comparisons(), measurement
            continue
        with Lab(float(place.split()[0])) as lab:
            ranks = lab_job("hocket", lab, __file__, [place], 1)
            measurement = measure_jobs([ranks], place, options.settings, start_timeout_s=300.0)
        yield step_comparisons(place), measurement


if __name__ == "__main__":
    run_claim(
        "packed messages between stages make steps between hosts faster, bit for bit",
        parts,
        option("--place", action="append", choices=PLACES, help="may be repeated"),
        needs_lab=lambda options: options.place != [CODEC],
        unit="ms",
    )

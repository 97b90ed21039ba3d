"""Trains the encoder of the drawn scenes and writes the weights that are shipped.

    python benchmarks/shapes_encoder.py --out bayesrnn/tasks/captions/encoders/shapes_net.safetensors

The network learns to name what a caption says: linear heads on its features give the kind of scene, the
number of objects, the relation, and each object's size, colour and shape. The heads are then dropped.
Every scene is drawn with a seed other than the data set's 0 and is seen once. The accuracies, of the weights
as they are stored, are on scenes of the same seed's test split.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayesrnn.files import check_writable
from bayesrnn.report.table import markdown_table
from bayesrnn.storage import save_tensors
from bayesrnn.tasks.captions.data.shapes import (
    COLOURS,
    KINDS,
    RELATIONS,
    SHAPES,
    SIZES,
    draw,
    make_scene,
    scene_name,
)
from bayesrnn.tasks.captions.encoders.shapes_net import FORMAT, ShapesNet

NOTHING = -100  # the class that cross_entropy leaves out: what a scene does not have
ATTRIBUTES = {
    "kind": KINDS,
    "count": (1, 2, 3),
    "relation": RELATIONS,
    **{
        f"{name} of {which}": values
        for which in ("first", "second")
        for name, values in (("size", tuple(SIZES)), ("colour", tuple(COLOURS)), ("shape", SHAPES))
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    parser.add_argument("--steps", type=int, default=4500)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=4e-3, help="the highest; it rises, then falls")
    parser.add_argument("--held-out", type=int, default=4000, help="scenes to measure on")
    parser.add_argument("--seed", type=int, default=1, help="not 0, which is the data set's")
    options = parser.parse_args()
    if options.seed == 0:
        parser.error("--seed 0 would train on the data set's own scenes.")
    check_writable(options.out)
    torch.manual_seed(options.seed)
    start = time.perf_counter()
    net, heads = _train(options)
    for tensor in (*net.state_dict().values(), *heads.state_dict().values()):
        if tensor.is_floating_point():
            tensor.copy_(tensor.half())
    accuracies = _accuracies(net.eval(), heads, options)
    state = {
        name: tensor.half() if tensor.is_floating_point() else tensor
        for name, tensor in net.state_dict().items()
    }
    command = (
        f"python benchmarks/shapes_encoder.py --steps {options.steps} --batch-size "
        f"{options.batch_size} --lr {options.lr:g} --seed {options.seed} --out {options.out.name}"
    )
    header = {"format": FORMAT, "command": command, "seed": options.seed, "accuracy": accuracies}
    save_tensors(options.out, state, header)
    rows = [[name, f"{100 * accuracy:.2f}"] for name, accuracy in accuracies.items()]
    print(markdown_table(["attribute", "% right"], rows))
    parameters = sum(p.numel() for p in net.parameters())
    print(f"{parameters:,} parameters, {options.out.stat().st_size:,} bytes", end=", ")
    print(f"{time.perf_counter() - start:.0f} s")


def _train(options: argparse.Namespace) -> tuple[ShapesNet, nn.Linear]:
    net = ShapesNet()
    heads = nn.Linear(net.features, sum(map(len, ATTRIBUTES.values())))
    parameters = [*net.parameters(), *heads.parameters()]
    optimizer = torch.optim.AdamW(parameters, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, options.lr, total_steps=options.steps, cycle_momentum=False
    )
    for step in range(options.steps):
        images, classes = _batch("train", step, options)
        losses = [
            F.cross_entropy(scores, target, ignore_index=NOTHING)
            for scores, target in zip(_scores(net, heads, images), classes.T, strict=True)
        ]
        loss = torch.stack(losses).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if (step + 1) % 250 == 0:
            print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)
    return net, heads


@torch.no_grad()
def _accuracies(net: ShapesNet, heads: nn.Linear, options: argparse.Namespace) -> dict[str, float]:
    """The share of scenes with each attribute right, among those that have it, and with all right."""
    right, targets = [], []
    for index in range(options.held_out // options.batch_size):
        images, classes = _batch("test", index, options)
        best = torch.stack([s.argmax(-1) for s in _scores(net, heads, images)], -1)
        right.append(best == classes)
        targets.append(classes)
    has = torch.cat(targets) != NOTHING  # (scenes, attributes)
    hits = torch.cat(right) & has
    shares = (hits.sum(0) / has.sum(0)).tolist()
    accuracies = dict(zip(ATTRIBUTES, shares, strict=True))
    accuracies["all"] = (hits == has).all(-1).float().mean().item()
    return {name: round(accuracy, 5) for name, accuracy in accuracies.items()}


def _scores(net: ShapesNet, heads: nn.Linear, images: Tensor) -> tuple[Tensor, ...]:
    return heads(net(images)).split([len(values) for values in ATTRIBUTES.values()], -1)


def _batch(split: str, index: int, options: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """Images (N, 3, 64, 64) and their classes (N, attributes)."""
    images, classes = [], []
    for which in range(index * options.batch_size, (index + 1) * options.batch_size):
        scene = make_scene(scene_name(split, which), options.seed)
        images.append(np.array(draw(scene)))
        # Of equal objects only the first is named.
        named = scene.objects if scene.relation else scene.objects[:1]
        said = [scene.kind, len(scene.objects), scene.relation]
        said += [word for thing in named for word in (thing.size, thing.colour, thing.shape)]
        said += [None] * (len(ATTRIBUTES) - len(said))
        classes.append(
            [
                NOTHING if word is None else values.index(word)
                for word, values in zip(said, ATTRIBUTES.values(), strict=True)
            ]
        )
    pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 255
    return pixels, torch.tensor(classes)


if __name__ == "__main__":
    main()

"""Trains a byte transformer by Muon and AdamW with local updates, for slow networks: a script to copy.

sirtakirun -np 4 python examples/pytorch_transformer.py
sirtakirun -np 4 python examples/pytorch_transformer.py --text book.txt --local-updates 8   # merges every eight steps

The numbered comments mark the differences from a script for one process.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sirtaki.torch as hvd

WIDTH, LENGTH = 96, 64


class Transformer(nn.Module):
    """Two layers of causal attention over 64 bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, WIDTH)
        self.position = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 256, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)

    def forward(self, text: Tensor) -> Tensor:
        """Returns the scores of the byte that follows each byte."""
        return self.head(self.body(self.embedding(text) + self.position, mask=self.mask, is_causal=True))


def text_of(path: Path | None) -> Tensor:
    """Returns the bytes of a file; without one, those of the modules of Python's standard library."""
    files = [path] if path else sorted(Path(os.__file__).parent.glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8)


def loss_of(model: nn.Module, text: Tensor, begins: Tensor) -> Tensor:
    """Returns the mean loss for the bytes of windows of the text, in nats."""
    windows = text[begins.unsqueeze(1) + torch.arange(LENGTH + 1)].long()
    return F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


def wrapped(model: nn.Module, args: argparse.Namespace) -> list[torch.optim.Optimizer]:
    """Returns Muon for the matrices of the layers and AdamW for all other parameters, both with local updates."""
    named = list(model.named_parameters())
    matrices = [(name, p) for name, p in named if name.startswith("body") and p.dim() == 2]
    others = [(name, p) for name, p in named if not (name.startswith("body") and p.dim() == 2)]
    # 3. Muon takes matrices only, so there are two optimizers, wrapped one by one.
    muon = torch.optim.Muon([p for _, p in matrices], lr=args.lr, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW([p for _, p in others], lr=args.lr)
    settings = hvd.LocalUpdates(args.local_updates, steps=args.steps)
    return [
        hvd.DistributedOptimizer(muon, matrices, local_updates=settings),
        hvd.DistributedOptimizer(adamw, others, local_updates=settings),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="A byte transformer with local updates on several ranks")
    parser.add_argument("--text", type=Path, help="a file to learn; by default the modules of Python")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=32, help="windows of 64 bytes per rank and step")
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--local-updates", default="auto", help="auto, or the number of steps between two merges")
    args = parser.parse_args()

    hvd.init()  # 1. meet the other ranks
    torch.manual_seed(42)
    text = text_of(args.text)
    train, test = text[: -len(text) // 20], text[-len(text) // 20 :]
    model = Transformer()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # 2. start from the same weights
    optimizers = wrapped(model, args)

    draw = torch.Generator().manual_seed(hvd.rank())  # 4. each rank draws windows of its own
    for _ in range(args.steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = loss_of(model, train, torch.randint(len(train) - LENGTH, (args.batch_size,), generator=draw))
        loss.backward()
        for optimizer in optimizers:
            optimizer.report_loss(loss)  # 5. the guards see the loss
            optimizer.step()
    for optimizer in optimizers:
        optimizer.drain()  # 6. models are equal on all ranks: before evaluation, checkpoint, end

    with torch.no_grad():
        loss = loss_of(model, test, torch.randint(len(test) - LENGTH, (256,), generator=draw))
    loss = hvd.allreduce(loss, name="loss").item()
    if hvd.rank() == 0:
        mode = optimizers[0].local_stats().get("mode", "alone")
        print(f"{args.steps} steps: {loss:.3f} nats a byte of unseen text, mode {mode}")
    hvd.shutdown()


if __name__ == "__main__":
    main()

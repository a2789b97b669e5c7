"""Trains a small CNN on Fashion-MNIST by Muon and AdamW with local updates, for slow networks: a script to copy.

sirtakirun -np 4 python examples/pytorch_local_updates.py --epochs 1
python examples/pytorch_local_updates.py --local-updates 8      # merges every eight steps, on any network

The numbered comments mark the differences from pytorch_mnist.py.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from fashion_mnist import FashionNet, count_correct, load

import sirtaki.torch as hvd


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Fashion-MNIST with local updates on several ranks")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=64, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.002)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--steps", type=int, default=0, help="stop each epoch after so many steps; 0: never")
    parser.add_argument("--local-updates", default="auto", help="auto, or the number of steps between two merges")
    return parser.parse_args()


def wrapped(model: FashionNet, args: argparse.Namespace, steps: int) -> list[torch.optim.Optimizer]:
    """Returns Muon for the matrices and AdamW for all other parameters, both with local updates."""
    matrices = [(name, p) for name, p in model.named_parameters() if p.dim() == 2]
    others = [(name, p) for name, p in model.named_parameters() if p.dim() != 2]
    # 1. Muon takes matrices only, so there are two optimizers, wrapped one by one.
    muon = torch.optim.Muon([p for _, p in matrices], lr=args.lr, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW([p for _, p in others], lr=args.lr)
    settings = hvd.LocalUpdates(args.local_updates, steps=steps)
    return [
        hvd.DistributedOptimizer(muon, matrices, local_updates=settings),
        hvd.DistributedOptimizer(adamw, others, local_updates=settings),
    ]


def main() -> None:
    args = parse_arguments()
    hvd.init()
    torch.manual_seed(args.seed)
    model = FashionNet()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    train, test = load(train=True), load(train=False)
    epoch_steps = args.steps or len(train) // (args.batch_size * hvd.size())
    optimizers = wrapped(model, args, args.epochs * epoch_steps)
    for epoch in range(args.epochs):
        batches = train.batches(args.batch_size, epoch, hvd.rank(), hvd.size())
        for _, (images, labels) in zip(range(epoch_steps), batches, strict=False):
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            for optimizer in optimizers:
                optimizer.report_loss(loss)  # 2. the guards see the loss
                optimizer.step()
        for optimizer in optimizers:
            optimizer.drain()  # 3. models are equal on all ranks: before evaluation, checkpoint, end
        correct = torch.tensor(count_correct(model, test, hvd.rank(), hvd.size()))
        correct = hvd.allreduce(correct, name="correct", op=hvd.Sum).item()
        if hvd.rank() == 0:
            found = optimizers[0].local_stats()
            print(f"epoch {epoch + 1}: test accuracy {correct / len(test):.2%}, mode {found.get('mode', 'alone')}")
    hvd.shutdown()


if __name__ == "__main__":
    main()

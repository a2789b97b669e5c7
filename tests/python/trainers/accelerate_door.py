"""accelerate_prepared() with Hugging Face Accelerate, over the process group that PartialState makes.

It runs under `accelerate launch`.
The training accumulates gradients, clips them and computes in bfloat16, then goes on from its checkpoint.
"""

import sys
from pathlib import Path

import accelerate
import torch
from support import batches, make_wide_model, require_equal, require_state
from torch.utils.data import DataLoader

from sirtaki.huggingface import accelerate_prepared

folder = Path(sys.argv[1])


def train(local: str | None, checkpoint: Path, epochs: int, resumes: bool) -> list[float]:
    """Trains for some epochs, from a checkpoint if `resumes`, and writes one."""
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
    model = make_wide_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(batches(), batch_size=8, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    handle = accelerate_prepared(accelerator, model, optimizer, compression="twobit:wire=gather", local_updates=local)
    if resumes:
        accelerator.load_state(checkpoint)
    losses = []
    for _ in range(epochs):
        for inputs, labels in loader:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.cross_entropy(model(inputs), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 5.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    accelerator.save_state(checkpoint)
    require_equal(model)
    require_state(optimizer.state_dict(), local is not None)
    assert local is not None or handle.compression_report()
    return losses


for case, local in (("compression", None), ("local", "fixed:steps=4,delay=1,warmup=2")):
    first = train(local, folder / case, 2, False)
    later = train(local, folder / case, 1, True)
    assert sum(later[-10:]) < 6, (first, later)
if torch.distributed.get_rank() == 0:
    print(f"TRAINED loss {first[0]:.3f} to {later[-1]:.3f}", flush=True)

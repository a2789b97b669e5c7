"""Hugging Face Accelerate over Sirtaki: the process group exists before Accelerator(). Runs under torchrun."""

import accelerate
import torch
from support import batches, check, make_model
from torch.utils.data import DataLoader

torch.distributed.init_process_group("sirtaki")
accelerator = accelerate.Accelerator(cpu=True)
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
loader = DataLoader(batches(), batch_size=16, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
assert isinstance(model, torch.nn.parallel.DistributedDataParallel), type(model)
losses = []
for _ in range(3):
    for inputs, labels in loader:
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        gathered = accelerator.gather(loss.detach().reshape(1))
        assert gathered.shape == (accelerator.num_processes,)
accelerator.wait_for_everyone()
check(accelerator.unwrap_model(model), losses)

"""The Trainer of Hugging Face Transformers over Sirtaki, with the process group made before TrainingArguments()."""

import sys

import torch
from support import batches, check, make_model
from transformers import Trainer, TrainerCallback, TrainingArguments

torch.distributed.init_process_group("sirtaki")


class Model(torch.nn.Module):
    """A model that returns a dictionary with the loss, as models of Transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.model = make_model()

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Returns the loss and the logits of a batch."""
        logits = self.model(inputs)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


class Losses(TrainerCallback):
    """Keeps the losses that the Trainer logs."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_log(self, args, state, control, logs=None, **_) -> None:  # noqa: ANN001, ANN003
        """Called after every step; keeps the loss."""
        if logs and "loss" in logs:
            self.seen.append(float(logs["loss"]))


rows = [{"inputs": inputs, "labels": label} for inputs, label in batches()]
arguments = TrainingArguments(
    output_dir=sys.argv[1],
    use_cpu=True,
    per_device_train_batch_size=16,
    num_train_epochs=3,
    learning_rate=0.2,
    lr_scheduler_type="constant",
    optim="sgd",
    logging_steps=1,
    logging_nan_inf_filter=False,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
)
losses = Losses()
model = Model()
trainer = Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[losses])
trainer.train()
assert isinstance(trainer.model_wrapped, torch.nn.parallel.DistributedDataParallel), type(trainer.model_wrapped)
check(model.model, losses.seen if torch.distributed.get_rank() == 0 else [2.0, 1.0])

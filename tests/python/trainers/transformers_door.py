"""SirtakiCallback and add_metrics() in the Trainer of Transformers, over the process group that it makes.

It runs under torchrun. Each training accumulates gradients, clips them and computes in bfloat16, then goes on from its
checkpoint.
"""

import sys
from pathlib import Path

import torch
from support import batches, make_wide_model, require_equal, require_state
from transformers import Trainer, TrainerCallback, TrainingArguments

from sirtaki.huggingface import SirtakiCallback, add_metrics

folder = Path(sys.argv[1])
rows = [{"inputs": inputs, "labels": label} for inputs, label in batches()]


class Model(torch.nn.Module):
    """A model that returns a dictionary with the loss, as models of Transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.model = make_wide_model()

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Returns the loss and the logits of a batch."""
        logits = self.model(inputs)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


class Observer(TrainerCallback):
    """Stands for a logger: keeps the logs of the Trainer; requires equal models after evaluations and at the end."""

    def __init__(self) -> None:
        self.logs: list[dict[str, float]] = []

    def on_log(self, args, state, control, logs=None, **_) -> None:  # noqa: ANN001, ANN003
        """Called for each log."""
        self.logs.append(dict(logs))

    def on_evaluate(self, args, state, control, model=None, **_) -> None:  # noqa: ANN001, ANN003
        """Called after an evaluation."""
        require_equal(model)


def train(case: str, local: str | None, checkpoint: str | None = None) -> Observer:
    """Trains, with a checkpoint every 10 steps."""
    arguments = TrainingArguments(
        output_dir=str(folder / case),
        use_cpu=True,
        bf16=True,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        max_grad_norm=5.0,
        num_train_epochs=3,
        learning_rate=0.05,
        optim="sgd",
        optim_args="momentum=0.9",
        logging_steps=1,
        save_steps=10,
        eval_strategy="epoch",
        report_to=[],
        disable_tqdm=True,
    )
    observer = Observer()
    callbacks = [observer, SirtakiCallback(compression="twobit:wire=gather", local_updates=local)]
    trainer = Trainer(model=Model(), args=arguments, train_dataset=rows, eval_dataset=rows[:64], callbacks=callbacks)
    add_metrics(trainer)
    trainer.train(resume_from_checkpoint=checkpoint)
    require_equal(trainer.model)
    if local is None and checkpoint is None:
        trainer.train()  # again, with the same wrapper
        require_equal(trainer.model)
    return observer


for case, local in (("compression", None), ("local", "fixed:steps=4,delay=1,warmup=2")):
    seen = train(case, local).logs
    checkpoint = folder / case / "checkpoint-20"
    require_state(torch.load(checkpoint / "optimizer.pt"), local is not None)
    resumed = train(case, local, str(checkpoint)).logs
    losses, again = ([row["loss"] for row in rows if "loss" in row] for rows in (seen, resumed))
    if torch.distributed.get_rank() == 0:
        assert max(sum(losses[-5:]), sum(again[-5:])) < 3, (losses, again)
        assert len(again) == 10, "one epoch more"
        assert [row["sirtaki/wire_bytes"] > 0 for row in seen if "loss" in row].count(True) > 5, seen
if torch.distributed.get_rank() == 0:
    print(f"TRAINED loss {losses[0]:.3f} to {losses[-1]:.3f}", flush=True)

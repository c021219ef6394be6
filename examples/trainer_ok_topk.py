"""Train a small Llama with transformers.Trainer over hocket; one line makes the sums of its gradients sparse.

pip install transformers accelerate
hocket run -n 2 examples/trainer_ok_topk.py
"""

import tempfile
from typing import Any

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

import hocket.torch

TOKENS, LENGTH = 32, 16


def sequences(number: int) -> list[dict[str, torch.Tensor]]:
    """Return sequences that count with steps of 1 to 4, modulo TOKENS."""
    starts, steps = torch.randint(TOKENS, (number, 1)), torch.randint(1, 5, (number, 1))
    return [{"input_ids": each, "labels": each} for each in (starts + steps * torch.arange(LENGTH)) % TOKENS]


class SparseGradients(TrainerCallback):
    """Registers the hook."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    # accelerate wraps the model after `Trainer._wrap_model`, and can register torch's own hooks only. When training
    # begins, trainer.model_wrapped is the DistributedDataParallel; the model among the arguments is not wrapped.
    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.state, hook = hocket.torch.ok_topk(density=0.05, dense="never")  # "auto" is dense where that is faster
        self.trainer.model_wrapped.register_comm_hook(self.state, hook)


# Trainer uses the group that exists. TrainingArguments(ddp_backend="hocket") fails with use_cpu: accelerate knows gloo
# and MPI only.
dist.init_process_group("hocket")
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=TOKENS, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2
)
trainer = Trainer(
    LlamaForCausalLM(config),
    TrainingArguments(
        tempfile.gettempdir(),  # nothing is saved
        use_cpu=True,
        max_steps=200,
        per_device_train_batch_size=16,
        learning_rate=3e-3,
        logging_steps=50,
        logging_first_step=True,
        save_strategy="no",
        report_to="none",
        ddp_find_unused_parameters=False,
        disable_tqdm=True,
    ),
    train_dataset=sequences(2048),
)
sparse = SparseGradients(trainer)
trainer.add_callback(sparse)
trainer.train()
if trainer.is_world_process_zero():
    losses = [float(each["loss"]) for each in trainer.state.log_history if "loss" in each]
    print(f"loss {losses[0]:.3f} at the start, {losses[-1]:.3f} after {trainer.state.global_step} steps")
    print(sparse.state.explain())
dist.destroy_process_group()

"""Train a network on digits with PyTorch Lightning over hocket; one line makes the sums of its gradients sparse.

pip install lightning scikit-learn
hocket run -n 2 examples/lightning_ok_topk.py
"""

import os

import lightning
import torch
import torch.distributed as dist
import torch.nn.functional as F
from lightning.pytorch.plugins.environments import TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hocket.torch


class DigitNetwork(lightning.LightningModule):
    """Two layers, 19,210 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
        self.losses: list[float] = []

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        images, labels = batch
        loss = F.cross_entropy(self.layers(images), labels)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class SparseGradients(lightning.Callback):
    """Registers the hook."""

    # DDPStrategy's own ddp_comm_state and ddp_comm_hook do not help: they must be there before the process group is,
    # and Lightning registers them on GPUs only. When training starts, the group exists, and trainer.model is wrapped.
    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self.state, hook = hocket.torch.ok_topk(density=0.05, dense="never")  # "auto" is dense where that is faster
        trainer.model.register_comm_hook(self.state, hook)


lightning.seed_everything(0)
pixels, labels = load_digits(return_X_y=True)
digits = TensorDataset(torch.from_numpy(pixels).float() / 16, torch.from_numpy(labels))
network, sparse = DigitNetwork(), SparseGradients()
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    strategy=DDPStrategy(process_group_backend="hocket"),
    plugins=[TorchElasticEnvironment()],  # reads what `hocket run` sets; a search for it imports mpi4py
    callbacks=[sparse],
    max_epochs=10,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(network, DataLoader(digits, batch_size=32, shuffle=True, drop_last=True))
if trainer.is_global_zero:
    print(f"loss {network.losses[0]:.3f} at the start, {network.losses[-1]:.3f} after {trainer.global_step} steps")
    print(sparse.state.explain())
dist.destroy_process_group()

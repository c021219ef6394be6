"""The history of a training: numbers by epoch."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class History:
    """Numbers of every epoch, equal on all ranks.

    Args:
        history: by name, such as "loss", "val_loss" and "samples_per_s": one number for each epoch.
        epoch: indices of the epochs.
        batch_losses: the loss of every step, in order.
        plan: the set-up of the training, in words.
        messages: with ``messages="lossless"``, how many bytes the messages between stages have taken, in words.
        samples_per_s: one number for each epoch.

    Examples:
        >>> history = hk.train.History()
        >>> history.add(0, {"loss": 0.5, "val_loss": 0.75})
        >>> history.add(1, {"loss": 0.25, "val_loss": 0.5})
        >>> history.history
        {'loss': [0.5, 0.25], 'val_loss': [0.75, 0.5]}
    """

    history: dict[str, list[float]] = field(default_factory=dict)
    epoch: list[int] = field(default_factory=list)
    batch_losses: list[float] = field(default_factory=list)
    plan: str = ""
    messages: str = ""
    samples_per_s: list[float] = field(default_factory=list)

    def add(self, epoch: int, logs: dict[str, float]) -> None:
        """Add the numbers of an epoch."""
        self.epoch.append(epoch)
        for name, value in logs.items():
            self.history.setdefault(name, []).append(value)

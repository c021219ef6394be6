"""What happened in a training: numbers by epoch."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class History:
    """Numbers of every epoch, the same on every rank.

    Args:
        history: by name, such as "loss", "val_loss" and "samples_per_s": one number an epoch.
        epoch: numbers of the epochs.
        batch_losses: of every step, in order.
        plan: what the ranks did, in words.
        samples_per_s: of every epoch.
    """

    history: dict[str, list[float]] = field(default_factory=dict)
    epoch: list[int] = field(default_factory=list)
    batch_losses: list[float] = field(default_factory=list)
    plan: str = ""
    samples_per_s: list[float] = field(default_factory=list)

    def add(self, epoch: int, logs: dict[str, float]) -> None:
        """Add an epoch."""
        self.epoch.append(epoch)
        for name, value in logs.items():
            self.history.setdefault(name, []).append(value)

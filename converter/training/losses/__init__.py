"""Losses: per-example loss, weighted by `weight[B]`, as graph ops after the model's outputs."""

from converter.training.losses.attach import attach_loss, link_notes
from converter.training.losses.loss import JointLoss, Loss, Penalty, traced_loss
from converter.training.losses.named import LOSSES, labels_of, loss_from_table, named_loss

__all__ = [
    "LOSSES",
    "JointLoss",
    "Loss",
    "Penalty",
    "attach_loss",
    "loss_from_table",
    "link_notes",
    "labels_of",
    "named_loss",
    "traced_loss",
]

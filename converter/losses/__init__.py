"""Losses: per-example loss, weighted by `weight[B]`, as graph ops behind the model's outputs."""

from converter.losses.attach import LossOfRows, attach_loss, link_notes, loss_of_rows
from converter.losses.loss import JointLoss, Loss, Penalty, traced_loss
from converter.losses.named import LOSSES, loss_from_table, named_loss

__all__ = [
    "LOSSES",
    "JointLoss",
    "Loss",
    "LossOfRows",
    "Penalty",
    "attach_loss",
    "link_notes",
    "loss_from_table",
    "loss_of_rows",
    "named_loss",
    "traced_loss",
]

"""What is learned of a record, one label or several: the loss of a batch, probabilities, and how answers are scored.

The task belongs to the data and shows in the targets' shape: (N,) is one label a record, (N, L) says of each of L
labels whether a record has it. Methods and engines ask the task and do not tell the two apart.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from fedflux.data.tasks.areas import macro_auc

ScoreName = Literal["accuracy", "macro ROC AUC"]
Labels = NDArray[np.int64]


class Task(Protocol):
    """How answers are compared with targets."""

    several: ClassVar[bool]
    """Whether a record may have several labels."""
    score_name: ClassVar[ScoreName]

    def kinds(self, outputs: int) -> int:
        """U: of how many kinds records are, where each is of one (`data.tasks.kinds`)."""

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        """(N,): what each example loses."""

    def slope(self, logits: Tensor, y: Tensor) -> Tensor:
        """(outputs, N): the gradient of the mean loss in the logits, which come transposed and may be changed."""

    def probabilities(self, logits: Tensor) -> Tensor:
        """(N, outputs): what a model answers."""

    def score(self, probabilities: Tensor, y: Tensor) -> float:
        """How good answers are, 0 to 1; NaN where the targets cannot tell."""

    def scores(self, probabilities: Tensor, y: Tensor, bounds: Labels) -> NDArray[np.float64]:
        """The score of each client, whose records lie one after another between these bounds."""

    def targets(self, size: int, outputs: int) -> Tensor:
        """Some targets, for whoever times a step."""


@dataclass(frozen=True)
class OneLabel:
    """Every record is of one class: cross-entropy, softmax, accuracy."""

    several: ClassVar[bool] = False
    score_name: ClassVar[ScoreName] = "accuracy"

    def kinds(self, outputs: int) -> int:
        """The classes."""
        return outputs

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        """The cross-entropy of each example."""
        return cross_entropy(logits, y, reduction="none")

    def slope(self, logits: Tensor, y: Tensor) -> Tensor:
        """Softmax less one at the label."""
        probabilities = torch.softmax(logits, 0)
        minus_one = torch.full_like(probabilities[:1], -1.0)
        return probabilities.scatter_add_(0, y.unsqueeze(0), minus_one).div_(len(y))

    def probabilities(self, logits: Tensor) -> Tensor:
        """Softmax."""
        return logits.softmax(dim=1)

    def score(self, probabilities: Tensor, y: Tensor) -> float:
        """The share of examples whose likeliest class is theirs."""
        return float((probabilities.argmax(dim=1) == y).double().mean())

    def scores(self, probabilities: Tensor, y: Tensor, bounds: Labels) -> NDArray[np.float64]:
        """The same of each client, counted where the answers lie."""
        right = np.concatenate([[0], (probabilities.argmax(dim=1) == y).cumsum(0).cpu().numpy()])
        return np.asarray(np.diff(right[bounds]) / np.diff(bounds))

    def targets(self, size: int, outputs: int) -> Tensor:
        """Every class in turn."""
        return torch.arange(size) % outputs


@dataclass(frozen=True)
class SeveralLabels:
    """Every record has any of the labels, or none: binary cross-entropy, sigmoid, macro ROC AUC."""

    several: ClassVar[bool] = True
    score_name: ClassVar[ScoreName] = "macro ROC AUC"

    def kinds(self, outputs: int) -> int:
        """The labels, and none of them."""
        return outputs + 1

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        """The binary cross-entropy of each example, the mean over its labels."""
        return binary_cross_entropy_with_logits(logits, y.to(logits.dtype), reduction="none").mean(dim=1)

    def slope(self, logits: Tensor, y: Tensor) -> Tensor:
        """Sigmoid less target."""
        return torch.sigmoid(logits).sub_(y.t()).div_(y.numel())

    def probabilities(self, logits: Tensor) -> Tensor:
        """Sigmoid, label by label."""
        return logits.sigmoid()

    def score(self, probabilities: Tensor, y: Tensor) -> float:
        """The mean over labels of the area under the ROC curve."""
        return macro_auc(probabilities.double().cpu().numpy(), y.cpu().numpy())

    def scores(self, probabilities: Tensor, y: Tensor, bounds: Labels) -> NDArray[np.float64]:
        """The same of each client."""
        answers, known = probabilities.double().cpu().numpy(), y.cpu().numpy()
        parts = [slice(begin, end) for begin, end in pairwise(bounds.tolist())]
        return np.array([macro_auc(answers[rows], known[rows]) for rows in parts])

    def targets(self, size: int, outputs: int) -> Tensor:
        """Every second label."""
        return (torch.arange(size)[:, None] + torch.arange(outputs)) % 2


ONE_LABEL, SEVERAL_LABELS = OneLabel(), SeveralLabels()


def task_of(y: NDArray[np.generic]) -> Task:
    """The task that targets of this shape are for."""
    return SEVERAL_LABELS if y.ndim == 2 else ONE_LABEL

"""What is learned of a record: losses, probabilities and scores of one label and of several."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch.nn.functional import binary_cross_entropy, cross_entropy

from fedflux.data.tasks import ONE_LABEL, SEVERAL_LABELS, Task, task_of
from fedflux.data.tasks.areas import macro_auc
from fedflux.data.tasks.kinds import kinds, rarest_first, strata


def answers(seed: int, levels: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores of 60 records for five labels, some equal where they have few levels, and the labels."""
    rng = np.random.default_rng(seed)
    scores = rng.random((60, 5)) if levels is None else rng.integers(levels, size=(60, 5)) / levels
    return torch.from_numpy(scores), torch.from_numpy(
        (rng.random((60, 5)) < (0.1, 0.3, 0.5, 0.7, 0.9)).astype(np.int64)
    )


@pytest.mark.parametrize("levels", [None, 2, 4, 30])
def test_macro_auc_is_that_of_scikit_learn(levels: int | None) -> None:
    for seed in range(20):
        scores, y = answers(seed, levels)
        known = [u for u in range(5) if 0 < y[:, u].sum() < len(y)]
        expected = np.mean([roc_auc_score(y[:, u], scores[:, u]) for u in known])
        assert macro_auc(scores.numpy(), y.numpy()) == pytest.approx(expected, abs=1e-12)


def test_labels_that_all_or_none_have_do_not_count() -> None:
    scores, y = answers(3)
    y[:, 0], y[:, 4] = 0, 1
    expected = np.mean([roc_auc_score(y[:, u], scores[:, u]) for u in (1, 2, 3)])
    assert macro_auc(scores.numpy(), y.numpy()) == pytest.approx(expected)
    assert np.isnan(macro_auc(scores[:1].numpy(), y[:1].numpy()))
    assert np.isnan(macro_auc(np.zeros((0, 2)), np.zeros((0, 2), np.int64)))


def test_unknown_targets_are_left_out() -> None:
    scores, y = answers(4)
    y[:30, 1] = -1
    expected = [roc_auc_score(y[:, u], scores[:, u]) for u in (0, 2, 3, 4)]
    expected.append(roc_auc_score(y[30:, 1], scores[30:, 1]))
    assert macro_auc(scores.numpy(), y.numpy()) == pytest.approx(np.mean(expected))


def test_losses_are_the_cross_entropies() -> None:
    logits = torch.randn(40, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y, several = torch.arange(40) % 5, answers(1)[1][:40]
    assert torch.equal(ONE_LABEL.losses(logits, y), cross_entropy(logits, y, reduction="none"))
    expected = binary_cross_entropy(logits.sigmoid(), several.double())
    assert float(SEVERAL_LABELS.losses(logits, several).mean()) == pytest.approx(float(expected))
    assert torch.equal(SEVERAL_LABELS.probabilities(logits), logits.sigmoid())


@pytest.mark.parametrize("task", [ONE_LABEL, SEVERAL_LABELS])
def test_the_slope_is_the_gradient_of_the_mean_loss(task: Task) -> None:
    logits = torch.randn(24, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64, requires_grad=True)
    y = task.targets(24, 5)
    (expected,) = torch.autograd.grad(task.losses(logits, y).mean(), logits)
    torch.testing.assert_close(task.slope(logits.detach().t().contiguous(), y).t(), expected)


@pytest.mark.parametrize("task", [ONE_LABEL, SEVERAL_LABELS])
def test_scores_of_clients_side_by_side_are_those_of_each(task: Task) -> None:
    probabilities, y = answers(5)
    targets = y if task.several else y.argmax(dim=1)
    bounds = np.array([0, 20, 21, 60])
    each = [task.score(probabilities[a:b], targets[a:b]) for a, b in ((0, 20), (20, 21), (21, 60))]
    np.testing.assert_array_equal(task.scores(probabilities, targets, bounds), each)


def test_every_record_is_of_one_kind_its_rarest_label() -> None:
    y = np.array([[1, 1, 0], [1, 0, 0], [0, 1, 1], [0, 0, 0], [1, 1, 0]])
    order = rarest_first(y.sum(axis=0))
    assert order == (2, 0, 1)
    assert kinds(y, order).tolist() == [0, 0, 2, 3, 0]
    assert kinds(y).tolist() == [0, 0, 1, 3, 0]
    assert strata(y).tolist() == kinds(y, order).tolist()
    single = np.array([2, 0, 1])
    assert kinds(single) is single
    assert task_of(y) is SEVERAL_LABELS
    assert task_of(single) is ONE_LABEL

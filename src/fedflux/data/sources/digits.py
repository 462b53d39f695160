"""scikit-learn's digits: 1,797 grey 8×8 images that come with the installation, so the first run needs no download."""

from pathlib import Path

import numpy as np

from fedflux.data.dataset import Dataset, Examples
from fedflux.data.splits import TEST_SHARE, stratified_test_rows


def load_digits(data_dir: Path | None = None) -> Dataset:
    """The digits with a stratified 80/20 test split; nothing is read from `data_dir`."""
    from sklearn.datasets import load_digits as sklearn_digits

    bunch = sklearn_digits()
    x = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[:, None]
    y = bunch.target.astype(np.int64)
    train, test = stratified_test_rows(y, TEST_SHARE)
    return Dataset("digits", Examples(x[train], y[train]), Examples(x[test], y[test]), classes=10)

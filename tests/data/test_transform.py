"""What a pattern does to images and labels."""

from dataclasses import replace

import numpy as np

from fedflux.data.shifts.appearance import Look, apply_look
from fedflux.data.shifts.patterns import Pattern


def batch(count: int = 40, classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.integers(0, 256, (count, 3, 6, 6), dtype=np.uint8), np.arange(count) % classes


def test_class_looks_turn_images_of_their_class_alone() -> None:
    x, y = batch()
    before = x.copy()
    pattern = Pattern(class_looks=((2, Look(90)), (7, Look(0)), (5, Look(180))))
    changed, labels = pattern.transform(x, y, np.random.default_rng(0))
    for image, original, label in zip(changed, x, y, strict=True):
        assert np.array_equal(image, np.rot90(original, {2: 1, 5: 2}.get(int(label), 0), axes=(1, 2)))
    assert np.array_equal(labels, y)
    assert np.array_equal(x, before)


def test_relabel_changes_labels_alone_and_looks_go_by_the_old_label() -> None:
    x, y = batch(classes=3)
    pattern = Pattern(relabel=(1, 0, 2), class_looks=((0, Look(90)),))
    changed, labels = pattern.transform(x, y, np.random.default_rng(0))
    assert labels.tolist() == [[1, 0, 2][label] for label in y]
    assert np.array_equal(changed[y == 0], np.rot90(x[y == 0], axes=(2, 3)))
    assert np.array_equal(changed[y != 0], x[y != 0])


def test_soft_looks_are_drawn_image_by_image() -> None:
    x, y = batch(2000)
    looks = (Look(0), Look(90), Look(0, "red"))
    pattern = Pattern(look_weights=((looks[0], 0.2), (looks[1], 0.3), (looks[2], 0.5)))
    changed, _ = pattern.transform(x, y, np.random.default_rng(0))
    versions = [apply_look(x, look) for look in looks]
    hits = np.array([(changed == version).all(axis=(1, 2, 3)) for version in versions])
    assert hits.sum(axis=0).tolist() == [1] * 2000
    assert np.allclose(hits.mean(axis=1), [0.2, 0.3, 0.5], atol=0.04)


def test_merge_keeps_what_the_other_leaves_empty() -> None:
    a, b = Pattern(look=Look(90)), Pattern(kept=(1,))
    assert a.merge(b) == b.merge(a) == Pattern(look=Look(90), kept=(1,))
    assert a.merge(Pattern()) == a
    assert replace(a, kept=(1,)) == a.merge(b)

"""People's own arrays in one .npz file: shapes, types, clients, and what is said about the wrong form."""

from pathlib import Path

import numpy as np
import pytest
from tests.data.making import error_of

from fedflux.data.scaling import UNASKED
from fedflux.data.sources import load


def write_npz(folder: Path, **arrays: object) -> Path:
    np.savez(folder / "data.npz", **{key: np.asarray(value) for key, value in arrays.items()})  # type: ignore[arg-type]
    return folder / "data.npz"


def test_npz_by_its_path_or_its_folder(tmp_path) -> None:
    x = np.arange(20 * 4, dtype=np.uint8).reshape(20, 2, 2)
    file = write_npz(tmp_path, x=x, y=np.arange(20) % 2)
    dataset = load("npz", file)
    assert dataset.classes == 2
    assert dataset.input_shape == (1, 2, 2)
    assert np.bincount(dataset.train.y).tolist() == [8, 8]
    assert np.bincount(dataset.test.y).tolist() == [2, 2]
    joined = np.concatenate([dataset.train.x, dataset.test.x])
    assert sorted(map(bytes, joined)) == sorted(map(bytes, x))
    assert load("npz", tmp_path).checksum == dataset.checksum


@pytest.mark.parametrize(
    ("shape", "input_shape"),
    [
        ((10, 7), (7,)),
        ((10, 4, 5), (1, 4, 5)),
        ((10, 3, 4, 5), (3, 4, 5)),
        ((10, 4, 5, 3), (3, 4, 5)),
        ((10, 4, 5, 1), (1, 4, 5)),
        ((10, 1, 4, 3), (1, 4, 3)),
        ((10, 2, 4, 5), (2, 4, 5)),
    ],
)
@pytest.mark.parametrize("scale", ["auto", "pixels"])
def test_bytes_and_what_is_declared_as_pixels_are_images(tmp_path, shape, input_shape, scale) -> None:
    x = np.random.default_rng(0).random(shape)
    x = (255 * x).astype(np.uint8) if scale == "auto" else x
    y = np.zeros(10, int)
    dataset = load("npz", write_npz(tmp_path, x=x, y=y, x_test=x, y_test=y, scale=scale))
    assert dataset.input_shape == input_shape
    expected = x.transpose(0, 3, 1, 2) if shape[1:] in ((4, 5, 3), (4, 5, 1)) else x.reshape(10, *input_shape)
    assert dataset.scaling.kind == "pixels"
    assert np.array_equal(dataset.train.x, expected)


@pytest.mark.parametrize("shape", [(10, 7), (10, 6, 128), (10, 4, 5, 3), (10, 2, 3, 4, 5), (10, 1, 3, 2, 2, 2)])
@pytest.mark.parametrize("kind", ["float32", "float64", "int64"])
def test_other_numbers_keep_the_shape_that_they_came_in(tmp_path, shape, kind) -> None:
    x = (100 * np.random.default_rng(0).random(shape)).astype(kind)
    y = np.zeros(10, int)
    dataset = load("npz", write_npz(tmp_path, x=x, y=y, x_test=x, y_test=y))
    assert dataset.input_shape == shape[1:]
    assert dataset.train.x.dtype == kind
    assert np.array_equal(dataset.train.x, x)
    assert dataset.scaling == UNASKED


@pytest.mark.parametrize("scale", ["standardise", "none", "pixels"])
def test_the_file_declares_its_scale(tmp_path, scale) -> None:
    file = write_npz(tmp_path, x=np.zeros((10, 3, 2)), y=np.zeros(10, int), scale=scale)
    assert load("npz", file).scaling.kind == scale
    assert "'scale' is 'odd'; give auto, pixels" in error_of(
        lambda: load("npz", write_npz(tmp_path, x=X, y=Y, scale="odd"))
    )


@pytest.mark.parametrize(
    ("given", "kept"), [("int16", "int64"), ("uint8", "uint8"), ("float16", "float32"), ("bool", "float32")]
)
def test_npz_types(tmp_path, given, kept) -> None:
    dataset = load("npz", write_npz(tmp_path, x=np.ones((5, 2, 2), given), y=np.zeros(5, int)))
    assert dataset.train.x.dtype == kept
    assert dataset.train.x.max() == 1


@pytest.mark.parametrize("ids", [[20, 3], ["zoe", "adam"], [b"zoe", b"adam"]])
def test_npz_clients_and_clusters(tmp_path, ids) -> None:
    client = np.repeat(np.array(ids), 10)
    cluster = np.repeat([7, 4], 10)
    x = np.repeat([1, 2], 10)[:, None, None] * np.ones((20, 2, 2), np.uint8)
    dataset = load("npz", write_npz(tmp_path, x=x, y=np.arange(20) % 2, client=client, cluster=cluster))
    assert dataset.client_names == (("3", "20") if 3 in ids else ("adam", "zoe"))
    assert dataset.client_clusters is not None
    assert dataset.client_clusters.tolist() == [0, 1]
    for part, size in ((dataset.train, 8), (dataset.test, 2)):
        assert part.client is not None
        assert np.bincount(part.client).tolist() == [size, size]
        assert np.array_equal(part.x.reshape(size * 2, -1)[:, 0] == 2, part.client == 0)


def test_npz_test_part_is_taken_as_given(tmp_path) -> None:
    dataset = load(
        "npz",
        write_npz(
            tmp_path,
            x=np.zeros((3, 2, 2)),
            y=[0, 1, 0],
            client=["b", "a", "b"],
            x_test=np.ones((2, 2, 2)),
            y_test=[4, 0],
            client_test=["b", "a"],
        ),
    )
    assert dataset.classes == 3
    assert dataset.class_names == ("0", "1", "4")
    assert dataset.test.y.tolist() == [2, 0]
    assert dataset.train.client is not None
    assert dataset.test.client is not None
    assert dataset.train.client.tolist() == [1, 0, 1]
    assert dataset.test.client.tolist() == [1, 0]


def test_npz_clients_in_the_test_part_alone_come_last(tmp_path) -> None:
    file = write_npz(
        tmp_path,
        x=np.zeros((4, 2, 2)),
        y=[0, 1, 0, 1],
        client=["d", "b", "d", "b"],
        cluster=["x", "y", "x", "y"],
        x_test=np.ones((5, 2, 2)),
        y_test=[1, 0, 1, 0, 1],
        client_test=["c", "b", "a", "d", "c"],
    )
    dataset = load("npz", file)
    assert dataset.client_names == ("b", "d", "a", "c")
    assert dataset.test.client is not None
    assert dataset.test.client.tolist() == [3, 0, 2, 1, 3]
    assert dataset.client_clusters is not None
    assert dataset.client_clusters.tolist() == [1, 0, -1, -1]  # nobody knows theirs


X, Y = np.zeros((4, 2, 2), np.uint8), [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x": X}, "'y' is missing; found x"),
        ({"y": Y}, "'x' is missing"),
        ({"x": X, "y": Y, "clients": Y}, "unknown key 'clients': did you mean 'client'?"),
        ({"x": X, "y": Y, "x_test": X}, "'y_test' is missing, which 'x_test' needs"),
        ({"x": X, "y": Y, "y_test": Y}, "'x_test' is missing, which 'y_test' needs"),
        ({"x": X, "y": Y, "cluster": Y}, "'client' is missing, which 'cluster' needs"),
        ({"x": X, "y": Y, "client": Y, "x_test": X, "y_test": Y}, "'client_test' is missing"),
        ({"x": X, "y": Y, "x_test": X, "y_test": Y, "client_test": Y}, "'client' is missing"),
        ({"x": X, "y": Y[:3]}, "4 examples in 'x' but 3 in 'y'"),
        ({"x": X, "y": Y, "client": Y[:2]}, "4 examples in 'x' but 2 in 'client'"),
        ({"x": X[:0], "y": np.zeros(0, int)}, "'x' holds no example"),
        ({"x": np.zeros(4), "y": Y}, "'x' has shape (4,)"),
        ({"x": np.zeros((4, 0)), "y": Y}, "inputs without a number"),
        ({"x": X.astype(int) - 1, "y": Y, "scale": "pixels"}, "integers in 'x' run from -1 to -1"),
        ({"x": X.astype(int) + 256, "y": Y, "scale": "pixels"}, "integers in 'x' run from 256 to 256"),
        ({"x": X.astype(str), "y": Y}, "'x' holds <U"),
        ({"x": X + np.nan, "y": Y, "x_test": X + 0.0, "y_test": Y}, "row 0 of 'x' holds NaN"),
        ({"x": X + np.inf, "y": Y, "client": list("aabb")}, "row 0 (client 'a') of 'x' holds NaN or infinite"),
        ({"x": X, "y": [0, 1, np.nan, 1]}, "row 2 in 'y' has no label; clients without labels need names"),
        ({"x": X, "y": [0, 1, 0.5, 1]}, "label 0.5 of row 2 in 'y'; give integers or text"),
        ({"x": X, "y": [Y]}, "4 examples in 'x' but 1 in 'y'"),
        ({"x": X, "y": Y, "x_test": X, "y_test": list("abab")}, "labels are text in one part and numbers in another"),
        ({"x": X, "y": Y, "class_names": ["cat"]}, "label 1 has no name among the 1 class_names"),
        ({"x": X, "y": list("abab"), "class_names": ["a", "c"]}, "label b has no name"),
        ({"x": X, "y": Y, "client": Y, "client_names": ["0", "0"]}, "client '0' is named twice"),
        ({"x": X, "y": Y, "client": Y, "client_names": ["0", "2"]}, "client '1' is not among client_names"),
        ({"x": X, "y": Y, "x_test": X + 0.5, "y_test": Y}, "x is uint8 but x_test is float64"),
        ({"x": X, "y": Y, "x_test": X[:, :1], "y_test": Y}, "inputs of shape (1, 1, 2)"),
        ({"x": X, "y": Y, "client": [0.5, 1, 2, 3]}, "'client' is float64"),
        ({"x": X, "y": Y, "client": ["é".encode()] * 4}, "'client' holds bytes beyond ASCII"),
        ({"x": X, "y": Y, "client": list("aabb"), "cluster": [0, 0, 0, 1]}, "client 'b' lies in clusters 0 and 1"),
        ({"x": X, "y": np.array(Y, object)}, "cannot read 'y'"),
    ],
)
def test_npz_of_the_wrong_form(tmp_path, arrays, says) -> None:
    file = write_npz(tmp_path, **arrays)
    message = error_of(lambda: load("npz", file))
    assert says in message
    if "shape (1, 1, 2)" not in says:  # that the dataset reports
        assert message.startswith(f"{file}: ")


def test_npz_that_cannot_be_read(tmp_path) -> None:
    file = write_npz(tmp_path, x=np.random.default_rng(0).random((50, 8, 8)), y=np.zeros(50, int))
    whole = file.read_bytes()
    for content in (b"", b"PK\x03\x04 no zip", b"text", whole[:-200], whole[:5000]):
        file.write_bytes(content)
        assert error_of(lambda: load("npz", file)).startswith(f"{file}: not a readable .npz file")
    file.write_bytes(whole[:3000] + b"\xff" * 8 + whole[3008:])
    assert error_of(lambda: load("npz", file)).startswith(f"{file}: cannot read 'x'")
    np.save(tmp_path / "x.npy", X)
    assert "a single array" in error_of(lambda: load("npz", tmp_path / "x.npy"))


def test_npz_folder_must_hold_exactly_one(tmp_path) -> None:
    assert "exactly one .npz file, found none" in error_of(lambda: load("npz", tmp_path))
    write_npz(tmp_path, x=X, y=Y)
    (tmp_path / "other.npz").write_bytes((tmp_path / "data.npz").read_bytes())
    assert "found data.npz, other.npz" in error_of(lambda: load("npz", tmp_path))

"""Models against the sizes the paper and the authors' release give, and the door for models of one's own."""

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedflux.errors import FedfluxError
from fedflux.models import MLP, LeNet5, NamedEncoder, ResNet9, build_model
from fedflux.models.protocol import as_encoding, check_model

GREY, COLOUR, SMALL = (1, 28, 28), (3, 32, 32), (1, 8, 8)


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("model", "shape", "classes", "parameters", "latent"),
    [
        (LeNet5, GREY, 10, 61_706, 400),
        (LeNet5, (3, 28, 28), 10, 62_006, 400),
        (ResNet9, COLOUR, 100, 6_772_900, 2048),
        (MLP, SMALL, 10, 64 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10, 64),
    ],
)
def test_sizes(model, shape, classes: int, parameters: int, latent: int) -> None:
    built = model(shape, classes).eval()
    images = torch.rand(2, *shape)
    assert size(built) == parameters
    assert built.encode(images).shape == (2, latent)
    assert built(images).shape == (2, classes)
    torch.testing.assert_close(built.head(built.encode(images)), built(images))


@pytest.mark.parametrize("shape", [(1, 12, 12), (3, 13, 30), (1, 31, 17)])
def test_lenet5_takes_any_image_of_12_pixels_or_more(shape) -> None:
    assert LeNet5(shape, 4)(torch.rand(2, *shape)).shape == (2, 4)


def test_initial_weights_follow_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = build_model("lenet5", GREY, 10, seed=3)
    torch.manual_seed(2)
    again, other = (build_model("lenet5", GREY, 10, seed=seed) for seed in (3, 4))
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])
    assert not torch.equal(first.classifier[0].weight, other.classifier[0].weight)  # type: ignore


def test_building_leaves_the_global_generator_as_it_was(module) -> None:
    name = module(
        "import torch\nfrom fedflux.models import MLP\nclass Noisy(MLP):\n def forward(self, x):\n"
        "  return super().forward(x) + torch.randn(len(x), 1)\n"
    )
    for model in ("mlp", f"{name}:Noisy"):
        before = torch.get_rng_state()
        build_model(model, SMALL, 10, seed=5)
        assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("name", "shape"), [("lenet5", (1, 11, 28)), ("lenet5", (1, 1, 30)), ("resnet9", (3, 15, 64))])
def test_too_small_images_get_one_line_that_names_another_model(name: str, shape) -> None:
    with pytest.raises(FedfluxError, match=rf"{name} needs images of \d+×\d+ or more.*--model mlp"):
        build_model(name, shape, 10, seed=0)


class Plain(nn.Module):
    """A classifier that knows nothing of fedflux but the name of its encoder."""

    encoder = "body.0"

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2 * 6 * 6, 4))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.body(x)
        return logits


def test_named_encoder_gives_the_submodules_output() -> None:
    plain = Plain()
    images = torch.rand(3, *SMALL)
    wrapped = as_encoding(plain)
    assert isinstance(wrapped, NamedEncoder)
    assert torch.equal(wrapped.encode(images), plain.body[0](images).flatten(1))
    assert torch.equal(wrapped(images), plain(images))
    assert not plain.body[0]._forward_hooks  # the hook is gone again


def test_named_encoder_lists_the_submodules_there_are() -> None:
    with pytest.raises(FedfluxError, match=r"no submodule 'head'.*body\.0"):
        NamedEncoder(Plain(), "head")


def test_the_latents_of_a_sequence_are_what_its_last_part_is_given() -> None:
    act = nn.ReLU()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), act, nn.Linear(5, 4), act, nn.Linear(4, 3))
    wrapped, images = as_encoding(model), torch.rand(2, *SMALL)
    assert torch.equal(wrapped.encode(images), model[:-1](images))  # type: ignore[operator]
    assert torch.equal(wrapped(images), model(images))
    with pytest.raises(FedfluxError, match="Sequential shows no latents"):
        as_encoding(nn.Sequential(nn.Linear(64, 3)))


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes a module of the user's into the current folder; the answer is its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(source: str) -> str:
        name = f"user_models_{tmp_path.name}".replace("-", "_")
        (tmp_path / f"{name}.py").write_text(source)
        return name

    return write


def test_a_factory_of_ones_own(module) -> None:
    name = module(
        "from torch import nn\n"
        "def make(input_shape, classes):\n"
        "    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Linear(5, classes))\n"
        "    model.encoder = '1'\n"
        "    return model\n"
    )
    model = build_model(f"{name}:make", SMALL, 3, seed=0)
    images = torch.rand(2, *SMALL)
    assert model.encode(images).shape == (2, 5)  # type: ignore[operator]
    assert model(images).shape == (2, 3)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The current folder, which is not on the path; modules that are imported from it are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


LAZY = """
from fedflux.models import MLP

def make(input_shape, classes):
    from {sibling} import Wide
    return Wide(input_shape, classes)
"""
PACKAGE = """
from fedflux.models import MLP

class Late(MLP):
    def forward(self, x):
        from fedflux_lately.parts import double
        return double(super().forward(x)) if self.training else super().forward(x)
"""


def test_the_path_is_as_it_was_after_a_model_is_made(folder: Path) -> None:
    (folder / "fedflux_here.py").write_text(LAZY.format(sibling="fedflux_beside"))
    (folder / "fedflux_beside.py").write_text("from fedflux.models import MLP as Wide\n")
    before = list(sys.path)
    for _ in range(2):
        assert isinstance(build_model("fedflux_here:make", SMALL, 3, seed=0), MLP)
        assert sys.path == before


@pytest.mark.parametrize("source", ["1 / 0", "make = 5", "def make(shape, classes):\n raise KeyError"])
def test_the_path_is_as_it_was_after_a_model_that_cannot_be_made(folder: Path, source: str) -> None:
    (folder / "fedflux_wrong.py").write_text(source)
    before = list(sys.path)
    with pytest.raises(FedfluxError, match="fedflux_wrong"):
        build_model("fedflux_wrong:make", SMALL, 3, seed=0)
    assert sys.path == before


def test_what_a_module_does_to_the_path_itself_is_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (folder / "fedflux_adds.py").write_text(
        "import sys\nfrom fedflux.models import MLP as make\nsys.path.insert(0, 'elsewhere')\n"
    )
    before = list(sys.path)
    build_model("fedflux_adds:make", SMALL, 3, seed=0)
    assert sys.path == ["elsewhere", *before]


def test_a_package_finds_its_own_parts_later(folder: Path) -> None:
    (folder / "fedflux_lately").mkdir()
    (folder / "fedflux_lately" / "__init__.py").write_text(PACKAGE)
    (folder / "fedflux_lately" / "parts.py").write_text("def double(x):\n return 2 * x\n")
    model = build_model("fedflux_lately:Late", SMALL, 3, seed=0)
    sys.modules.pop("fedflux_lately.parts", None)  # as if nothing had asked for it yet
    images = torch.rand(2, *SMALL)
    torch.testing.assert_close(model.train()(images), 2 * model.eval()(images))


HEAD = "import torch\nfrom torch import nn\nfrom fedflux.models import MLP\n"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def make(input_shape):\n return MLP(input_shape, 3)", "cannot be made from"),
        ("def make(shape, classes):\n raise KeyError", "KeyError"),
        ("def make(shape, classes):\n return 'mlp'", "must return an nn.Module, not str"),
        ("def make(shape, classes):\n return nn.Flatten()", "Flatten shows no latents"),
        ("def make(shape, classes):\n return MLP(shape, classes + 1)", r"shape \(2, 4\), not \(2, 3\)"),
        ("def make(shape, classes):\n return MLP((1, 2, 2), classes)", "MLP fails on inputs of shape"),
        (
            "class make(MLP):\n def encode(self, x): return x\n def head(self, x): return x[:, 0, 0, :3]",
            r"encode gives shape \(2, 1, 8, 8\)",
        ),
        ("class make(MLP):\n def forward(self, x): return [x]", "forward gives list, not a tensor"),
        ("class make(MLP):\n def forward(self, x): assert False", "make fails on inputs.*AssertionError"),
        ("class make(MLP):\n def forward(self, x): raise ValueError", "make fails on inputs.*ValueError"),
        ("class make(MLP):\n def forward(self, x, mask): return super().forward(x)", r"several inputs \(x, mask\)"),
        ("class make(MLP):\n def forward(self, x, *, mask): return super().forward(x)", r"several inputs \(x, mask\)"),
        (
            "class make(MLP):\n def forward(self, x): return (super().forward(x), x)",
            "forward gives tuple, not a tensor",
        ),
        ("class make(MLP):\n def forward(self, x): return super().forward(x)[:, 0]", r"shape \(2,\), not \(2, 3\)"),
        (
            "class make(MLP):\n def forward(self, x): return super().forward(x) / 0",
            "make gives outputs that are no finite",
        ),
        ("class make(MLP):\n def encode(self, x): return super().encode(x).log() * 0", "no finite numbers"),
        ("class make(MLP):\n def forward(self, x): return super().forward(x).long()", "forward gives torch.int64"),
        (
            "class make(MLP):\n def forward(self, x):\n  y = super().forward(x)\n  return [y] if self.training else y",
            "forward gives list while training",
        ),
        ("def make(shape, classes):\n return MLP(shape, classes).requires_grad_(False)", "MLP has nothing to train"),
        ("def make(*told):\n m = nn.Identity()\n m.encode = lambda x: x\n return m", "Identity has nothing to train"),
        ("make = 5", "has no callable 'make'"),
        ("", "has no callable 'make'"),
        ("import no_such_package_anywhere", "no_such_package_anywhere"),
        ("1 / 0", "ZeroDivisionError"),
        ("def make(:", "cannot import.*SyntaxError"),
    ],
)
def test_a_factory_that_does_not_fit_gets_one_line(module, source: str, words: str) -> None:
    name = module(HEAD + source)
    with pytest.raises(FedfluxError, match=words) as caught:
        build_model(f"{name}:make", SMALL, 3, seed=0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lenet", "did you mean 'lenet5'"),
        ("no_such_module_anywhere:make", "cannot import 'no_such_module_anywhere'"),
        (":make", "cannot import ''"),
    ],
)
def test_a_model_that_does_not_exist(name: str, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))  # restores the path that the import widens
    with pytest.raises(FedfluxError, match=words):
        build_model(name, SMALL, 3, seed=0)


class Direction(MLP):
    """Knows no answer for blank inputs, and none is asked for in data; may be told a mask, and need not."""

    def forward(self, x: Tensor, mask: Tensor | None = None, **more: object) -> Tensor:
        return super().forward(x / x.flatten(1).norm(dim=1).reshape(-1, 1, 1, 1))


def test_a_check_refuses_no_model_that_trains_and_leaves_it_as_it_was() -> None:
    torch.manual_seed(3)
    check_model(Direction(SMALL, 3), SMALL, 3)
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Dropout(), nn.Linear(64, 3))
    model.encoder = "0"  # type: ignore[assignment]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    check_model(as_encoding(model), SMALL, 3)
    assert model.training
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])

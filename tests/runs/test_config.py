"""Where a setting comes from, what it may be, and how a run is named and repeated."""

import shlex
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest

import fedflux
from fedflux.algorithms import ALGORITHMS
from fedflux.cli import main as cli
from fedflux.cli import running
from fedflux.errors import FedfluxError
from fedflux.runs import presets
from fedflux.runs.config import (
    SETTINGS,
    RunConfig,
    make_config,
    read_config_file,
    unread,
    unread_in_words,
    warn_unread,
)
from fedflux.runs.presets import DATASETS_0_1, PRESETS, VERSION_0_1
from fedflux.settings import defaults

PAPER = {"model": "lenet5", "rounds": 10, "epochs": 2, "batch_size": 64, "lr": 0.005, "momentum": 0.9, "eps_scale": 1.0}
PAPERS_OWN = {
    "mnist": PAPER,
    "fmnist": {**PAPER, "eps_scale": 0.95},
    "cifar10": PAPER,
    "cifar100": {**PAPER, "model": "resnet9", "rounds": 15, "eps_scale": 0.98},
    "digits": {**PAPER, "model": "mlp", "batch_size": 16, "lr": 0.05},
}


@pytest.mark.parametrize(("dataset", "wanted"), PAPERS_OWN.items())
def test_presets_are_the_contracts(dataset: str, wanted: dict[str, Any]) -> None:
    config = asdict(make_config({"dataset": dataset}))
    assert {key: config[key] for key in wanted} == wanted


def test_defaults_without_any_option() -> None:
    config = make_config({})
    assert (config.dataset, config.seed, config.participation, config.cluster_round) == ("digits", 42, 1.0, "auto")
    assert config.algorithm == "flux"


def toml(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return path


def test_flags_win_over_the_file_and_the_file_over_the_preset(tmp_path: Path) -> None:
    file = toml(tmp_path, 'dataset = "fmnist"\nlr = 0.1\nbatch-size = 8\ncluster_round = 2\nclusters = "true"\n')
    config = make_config({"batch_size": 4, "lr": None}, file)
    assert config.dataset == "fmnist"
    assert config.batch_size == 4  # flag, though the file has 8 and the preset 64
    assert config.lr == 0.1  # file: a flag that is not given does not count
    assert config.eps_scale == 0.95  # preset of the file's dataset
    assert (config.cluster_round, config.clusters) == (2, "true")


def test_a_flags_dataset_brings_its_own_preset(tmp_path: Path) -> None:
    config = make_config({"dataset": "cifar100"}, toml(tmp_path, 'dataset = "digits"\nepochs = 5\n'))
    assert (config.model, config.lr, config.epochs) == ("resnet9", 0.005, 5)


def test_numbers_come_in_the_forms_people_write(tmp_path: Path) -> None:
    config = make_config(
        {"clusters": "3", "clusterer": "kmeans", "lr": 1}, toml(tmp_path, 'participation = 1\ncluster-round = "4"\n')
    )
    assert (config.clusters, config.cluster_round, config.lr, config.participation) == (3, 4, 1.0, 1.0)
    assert isinstance(config.lr, float)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("level = ", "not valid TOML"),
        ("level = 4\nlevel = 5", "not valid TOML"),
        ("levle = 4", "unknown setting 'levle': did you mean 'level'"),
        ("[data]\nlevle = 4", "unknown setting 'levle': did you mean 'level'"),
        ("level = 4\n[data]\nlevel = 4", "sets level twice"),
        ("level = 4.5", "--level '4.5' does not fit: give a whole number"),
        ("level = true", "--level 'True' does not fit"),
        ("level = [4]", "--level"),
        ("[level]\nis = 4", "--level"),
        ('lr = "fast"', "--lr 'fast' does not fit: give a number"),
        ("lr = true", "--lr"),
        ("lr = nan", "--lr nan"),
        ("lr = inf", "--lr inf"),
        ("dataset = 5", "--dataset '5' does not fit: give text"),
        ("out = 5", "--out"),
        ("clusters = true", "--clusters 'True' does not fit: give true or a whole number"),
        ('clusters = "many"', "--clusters 'many'"),
        ('clusters = "--5"', "--clusters '--5'"),
        ('clusters = "²"', "--clusters '²'"),
        ('cluster_round = "soon"', "--cluster-round 'soon' does not fit: give auto or trigger or a whole number"),
        ('precision = "fp8"', "--precision"),
        ('patterns = "odd"', "--patterns"),
    ],
)
def test_a_bad_file_gets_one_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(FedfluxError) as caught:
        make_config({}, toml(tmp_path, text))
    assert words in str(caught.value)


def test_a_file_may_have_tables_of_any_name(tmp_path: Path) -> None:
    text = 'seed = 43\n[data]\ndataset = "mnist"\nlevel = 3\n[training.local]\nbatch-size = 8\n'
    found = read_config_file(toml(tmp_path, text + '["Data in detail"]\nbank = 2\n'))
    assert found == {"seed": 43, "dataset": "mnist", "level": 3, "batch_size": 8, "bank": 2}
    config = make_config({}, tmp_path / "run.toml")
    assert (config.seed, config.level, config.batch_size, config.bank, config.model) == (43, 3, 8, 2, "lenet5")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b"out = '\xe9'")
    for path, words in ((tmp_path / "none.toml", "No such file"), (tmp_path, "directory")):
        with pytest.raises(FedfluxError, match=words):
            make_config({}, path)
    with pytest.raises(FedfluxError, match="not valid TOML"):
        make_config({}, tmp_path / "latin.toml")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rounds": 0}, "--rounds 0"),
        ({"epochs": 0}, "--epochs 0"),
        ({"batch_size": 0}, "--batch-size 0"),
        ({"components": 0}, "--components 0"),
        ({"passes": 20, "finetune": 2}, "leave out --finetune"),
        ({"passes": 0}, "--passes 0"),
        ({"answer": "both", "sharing": "trunk"}, "leave out --sharing trunk"),
        ({"sharing": "both"}, "--sharing 'both' does not fit: give auto or none or trunk or general"),
        ({"projector": "discriminant", "epsilon": 1.0}, "--projector discriminant"),
        ({"participation": 0.0}, "--participation 0.0"),
        ({"participation": 1.1}, "--participation 1.1"),
        ({"participation": float("nan")}, "--participation nan"),
        ({"lr": 0}, "--lr 0"),
        ({"lr": -0.1}, "--lr -0.1"),
        ({"momentum": 1}, "--momentum 1.0"),
        ({"momentum": -0.1}, "--momentum -0.1"),
        ({"optimiser": "rmsprop"}, "--optimiser 'rmsprop' does not fit: give sgd or adam or adamw"),
        ({"schedule": "step"}, "--schedule 'step' does not fit: give constant or cosine"),
        ({"weight_decay": -0.1}, "--weight-decay -0.1 is outside 0 to 1"),
        ({"weight_decay": float("inf")}, "--weight-decay inf is outside 0 to 1"),
        ({"clip": 0}, "--clip 0.0"),
        ({"clip": float("nan")}, "--clip nan"),
        ({"server_momentum": 1}, "--server-momentum 1.0"),
        ({"server_momentum": float("nan")}, "--server-momentum nan"),
        ({"eps_scale": 0}, "--eps-scale 0"),
        ({"eps_scale": float("inf")}, "--eps-scale inf"),
        ({"cluster_round": 0}, "--cluster-round 0"),
        ({"cluster_round": 11}, "--cluster-round 11 is outside the rounds 1 to 10"),
        ({"clusters": 0}, "--clusters 0"),
        ({"clusterer": "kmeans"}, "kmeans needs the number of clusters"),
        ({"clients": 0}, "0 clients"),
        ({"seed": -1}, "seed -1"),
        ({"level": 9}, "level 9"),
        ({"data_fraction": 0}, "data fraction"),
        ({"duplicate": 0}, "duplicate 0"),
        ({"samples_per_client": 0}, "0 samples per client"),
        ({"quantity_skew": 2}, "quantity skew"),
        ({"alpha": 0}, "alpha"),
        ({"strength": 1.5}, "strength 1.5 is outside 0 to 1"),
        ({"bank": 0}, "a bank of 0 patterns: give 1 or more"),
        ({"epsilon": 0}, "--epsilon 0.0: give a value above 0"),
        ({"epsilon": 1, "delta": 1}, "--delta 1.0 is outside 0 to 1"),
        ({"drift": "often"}, "--drift 'often' does not fit"),
        ({"engine": "lop"}, "unknown engine 'lop': did you mean 'loop'"),
        ({"algorithm": "flax"}, "unknown algorithm 'flax': did you mean 'flux'"),
        ({"preset": "papers"}, "--preset 'papers' does not fit: give 0.1 or paper or tuned or paper-baselines"),
        ({"late": "never"}, "--late 'never' does not fit: give regroup or place"),
        ({"dataset": "minst"}, "unknown dataset 'minst': did you mean 'mnist'"),
        ({"speed": 9}, "unknown setting 'speed'"),
    ],
)
def test_values_out_of_range_get_one_line(options: dict[str, Any], words: str) -> None:
    with pytest.raises(FedfluxError) as caught:
        make_config(options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rounds": 0}, "--rounds 0: give 1 or more"),
        ({"lr": float("nan")}, "--lr nan: give a value above 0"),
        ({"precision": "fp8"}, "--precision 'fp8' does not fit: give fp32 or fp32-strict or bf16"),
        ({"dataset": "minst"}, "unknown dataset 'minst': did you mean 'mnist'"),
        ({"passes": 20, "finetune": 2}, "leave out --finetune"),
        ({"clusterer": "kmeans"}, "kmeans needs the number of clusters"),
        ({"algorithm": "flux-dynamic", "clusters": 3}, "flux-dynamic takes no --clusters"),
        ({"algorithm": "flux-dynamic", "redescribe": 0}, "--redescribe 0: flux-dynamic finds drift"),
        ({"algorithm": "fedavg", "until": "clustered"}, "fedavg makes no descriptors to cluster"),
        ({"dp": "paper"}, "--dp paper needs a budget"),
        ({"shift": "none", "drift": "after:2"}, "--drift draws patterns anew, and none has none"),
        ({"drift": "after:10"}, "comes too late for 10 rounds"),
    ],
)
def test_checks_hold_for_a_config_that_is_made_directly(options: dict[str, Any], words: str) -> None:
    with pytest.raises(FedfluxError) as caught:
        RunConfig(**options)
    assert words in str(caught.value)


def test_equal_numbers_are_equal_settings_however_they_are_written() -> None:
    written: list[dict[str, Any]] = [{"lr": 1, "clusters": "3"}, {"lr": 1.0, "clusters": 3}]
    one, two = (asdict(RunConfig(algorithm="ifca", **values)) for values in written)
    assert one == two
    assert [type(value) for value in one.values()] == [type(value) for value in two.values()]


@pytest.mark.parametrize("algorithm", ["oracle", "flux-prior", "fedavg"])
def test_kmeans_needs_no_number_where_the_truth_or_nobody_asks(algorithm: str) -> None:
    assert make_config({"algorithm": algorithm, "clusterer": "kmeans"}).clusters is None


def parsed(command: str, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """What the command line makes of a command, without running it."""
    seen: list[RunConfig] = []

    def note(settings: RunConfig, on_round: object) -> dict[str, Any]:
        seen.append(settings)
        return {}

    monkeypatch.setattr(running, "run_config", note)
    words = shlex.split(command)
    assert words[0] == "fedflux"
    cli.app([*words[1:], "--json"], standalone_mode=False)
    return seen[0]


OTHER: dict[str, Any] = {
    "finetune": 3,
    "passes": 40,
    "preset": "paper-baselines",
    "late": "place",
    "dataset": "npz",
    "data_dir": "/data/it's mine $HOME/a b.npz",
    "shift": "pxgy+py",
    "level": 7,
    "clients": 12,
    "seed": 43,
    "scale": "none",
    "significance": 0.05,
    "variation": "fixed",
    "assignment": "euclidean",
    "min_members": 2,
    "novel": "global",
    "novelty_level": 0.01,
    "patterns": "shared",
    "bank": 3,
    "strength": 0.1,
    "alpha": 0.3,
    "quantity_skew": 1e-7,
    "data_fraction": 1 / 3,
    "duplicate": 4,
    "samples_per_client": 50,
    "drift": "after:4,7+test",
    "unseen": 2,
    "participation": 0.4,
    "algorithm": "flux-prior",
    "clusters": 4,
    "clusterer": "hdbscan",
    "cluster_round": 3,
    "eps_scale": 0.97,
    "components": 5,
    "covariance": "full",
    "bounds": "scalar",
    "projector": "discriminant",
    "sharing": "trunk",
    "answer": "both",
    "redescribe": 2,
    "false_alarms": 0.05,
    "drift_test": "chunk",
    "dp": "paper",
    "epsilon": 0.5,
    "delta": 1e-6,
    "privacy_unit": "group",
    "model": "package.module:factory",
    "rounds": 11,
    "epochs": 3,
    "batch_size": 17,
    "lr": 0.1 + 0.2,
    "momentum": 0.5,
    "optimiser": "adamw",
    "weight_decay": 0.01,
    "schedule": "cosine",
    "clip": 2.5,
    "server_momentum": 0.7,
    "engine": "loop",
    "device": "cpu",
    "precision": "bf16",
    "until": "clustered",
    "out": "-odd folder",
    "store": "some where.sqlite",
    "samples": "none",
    "track": "tensorboard",
    "resume": True,
}


TOGETHER = {**OTHER, "answer": "cluster", "passes": None, "privacy_unit": "record"}
"""Those that can be told in one run."""


def test_the_list_above_has_every_setting_and_no_default() -> None:
    """So that a new flag without a place on the command line or in `command()` fails the next test."""
    defaults = asdict(make_config({}))
    assert set(OTHER) == {field.name for field in fields(RunConfig)}
    assert [key for key, value in OTHER.items() if value == defaults[key]] == []


@pytest.mark.parametrize("dataset", PRESETS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {**TOGETHER, "covariance": "diagonal", "projector": "synthetic"},  # others are not private
        {**TOGETHER, "dp": None, "epsilon": None},
        {**TOGETHER, "dp": None, "epsilon": None, "answer": "both", "sharing": "general"},
        {**TOGETHER, "dp": None, "epsilon": None, "finetune": 0, "passes": 40},
        {"clusters": "true", "clusterer": "kmeans", "lr": 0.005, "model": "lenet5"},
        {"preset": "0.1", "seed": 43},
        {"preset": "paper"},
        {"preset": "paper", "clusterer": "calibrated", "late": "regroup", "lr": 0.05},  # back to the defaults
        {"preset": "paper", "clusters": 3},
    ],
)
def test_the_command_repeats_the_run(dataset: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config({**options, "dataset": dataset})
    assert parsed(config.command(), monkeypatch) == replace(config, resume=False)


def test_the_command_of_the_defaults_is_short() -> None:
    assert make_config({"dataset": "mnist"}).command() == "fedflux run --dataset mnist"


@pytest.mark.parametrize("told", [{}, {"finetune": 2}, {"sharing": "general"}])
def test_answer_both_is_the_older_name_of_a_general_model(told: dict[str, Any]) -> None:
    config = make_config({"answer": "both", **told})
    assert config == make_config({**told, "sharing": "general"})
    assert (config.answer, config.sharing) == ("cluster", "general")
    assert config.settings().sharing == "general"


def test_what_clusters_share_is_decided_by_validation_unless_a_preset_is_older() -> None:
    assert make_config({}).sharing == "auto"
    for name in ("0.1", "paper"):
        assert make_config({"preset": name}).sharing == "none"
        assert make_config({"preset": name, "answer": "both"}).sharing == "general"


def test_the_facade_takes_the_same_settings() -> None:
    with pytest.raises(FedfluxError, match="unknown setting 'levels': did you mean 'level'"):
        fedflux.run(levels=3)


def test_a_tuned_rate_comes_from_the_file_and_flags_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presets, "tuned", lambda: {"digits": {"rates": {"fedavg": 0.03}, "validation": {}}})
    told = {"preset": "tuned", "algorithm": "fedavg"}
    assert make_config(told).lr == 0.03
    assert make_config({**told, "lr": 0.2}).lr == 0.2
    with pytest.raises(FedfluxError, match="no rate for fedavg on mnist: it was tuned on digits"):
        make_config({**told, "dataset": "mnist"})
    monkeypatch.setattr(presets, "tuned", lambda: {"digits": {"rates": {"flux": 0.01}, "validation": {}}})
    assert make_config({**told, "algorithm": "flux-soft"}).lr == make_config({**told, "algorithm": "flux"}).lr == 0.01
    monkeypatch.setattr(presets, "tuned", lambda: {"digits": {"rates": {"fedavg": 0.03, "ditto": 0.06}}})
    rates = {name: make_config({**told, "algorithm": name}).lr for name in ("fedper", "ditto")}
    assert rates == {"fedper": 0.03, "ditto": 0.06}  # a rate of its own comes first
    with pytest.raises(FedfluxError, match="no rate for local on digits: it was tuned on nothing"):
        make_config({**told, "algorithm": "local"})


def test_the_tuned_rates_are_of_known_methods_and_the_best_of_their_validation() -> None:
    for dataset, found in presets.tuned().items():
        assert dataset in PRESETS
        for name, rate in found["rates"].items():
            assert name in ALGORITHMS
            assert found["validation"][name][str(rate)] == max(found["validation"][name].values())


def test_version_0_1_is_pinned_in_full() -> None:
    """A setting that is newer needs a line, too: the value that does what 0.1 did."""
    assert VERSION_0_1.keys() == SETTINGS.keys() - {"preset"}
    for dataset, own in DATASETS_0_1.items():
        assert own.keys() <= VERSION_0_1.keys(), dataset
    for name, value in VERSION_0_1.items():
        assert SETTINGS[name].read(value) == value


@pytest.mark.parametrize("dataset", DATASETS_0_1)
def test_version_0_1_stays_when_defaults_change(dataset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = make_config({"dataset": dataset, "preset": "0.1"})
    other = {**defaults(RunConfig), "clusterer": "hdbscan", "lr": 9.0, "dataset": "mnist", "late": "place"}
    monkeypatch.setattr(presets, "defaults", lambda owner: other)
    monkeypatch.setattr(presets, "PRESETS", {name: {"rounds": 99} for name in PRESETS})
    assert make_config({"dataset": dataset}).rounds == 99
    assert make_config({"dataset": dataset, "preset": "0.1"}) == before
    assert make_config({"preset": "0.1"}).dataset == "digits"


def test_version_0_1_may_be_written_as_a_number(tmp_path: Path) -> None:
    assert make_config({}, toml(tmp_path, "preset = 0.1")).preset == "0.1"


def test_the_paper_preset_is_the_papers_flux() -> None:
    config = make_config({"preset": "paper", "dataset": "fmnist"})
    assert {key: getattr(config, key) for key in presets.PAPER} == presets.PAPER
    assert (config.clusterer, config.assignment, config.late) == ("adaptive-dbscan", "euclidean", "place")
    assert (config.model, config.lr, config.eps_scale) == ("lenet5", 0.005, 0.95)
    assert config.settings().regroup is False
    assert make_config({}).settings().regroup is True
    assert make_config({"preset": "paper"}).lr == 0.05  # the paper has no digits


@pytest.mark.parametrize("name", ["0.1", "paper"])
def test_what_is_asked_for_wins_over_a_preset(name: str, tmp_path: Path) -> None:
    config = make_config({"preset": name, "clusterer": "hdbscan"}, toml(tmp_path, 'late = "place"\nlr = 0.3\n'))
    assert (config.clusterer, config.late, config.lr) == ("hdbscan", "place", 0.3)
    assert make_config({"preset": name, "clusters": 3}).clusterer == "kmeans"


def test_the_old_name_of_a_preset_is_the_new_one() -> None:
    config = make_config({"preset": "flux-paper"})
    assert config == make_config({"preset": "paper-baselines"})
    assert config.preset == "paper-baselines"
    assert config.settings().paper_baselines is True
    assert config.command() == "fedflux run --dataset digits --preset paper-baselines"


def test_what_was_asked_for_is_what_the_presets_did_not_bring() -> None:
    assert make_config({}).given() == {}
    assert make_config({"preset": "paper"}).given() == {"preset": "paper"}
    asked = {"dataset": "mnist", "preset": "paper", "clusterer": "hdbscan", "lr": 0.005}
    assert make_config(asked).given() == {"preset": "paper", "clusterer": "hdbscan"}


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"algorithm": "fedavg"}, []),
        ({"algorithm": "fedavg", "clusterer": "hdbscan", "lr": 0.1}, ["clusterer"]),
        ({"algorithm": "fedavg", "clusterer": "calibrated"}, []),  # as it is anyway
        ({"algorithm": "fedavg", "preset": "paper"}, []),  # nobody asked for its parts one by one
        ({"algorithm": "fedavg", "preset": "paper", "late": "regroup", "novel": "global"}, ["novel"]),
        ({"algorithm": "flux", "clusterer": "hdbscan", "redescribe": 2}, ["redescribe"]),
        ({"algorithm": "local", "finetune": 2, "epsilon": 1.0}, ["finetune", "epsilon"]),
        ({"algorithm": "ifca", "clusters": 3}, []),
        ({"algorithm": "cfl", "clusters": 3}, ["clusters"]),
    ],
)
def test_settings_that_the_method_does_not_read_are_named(options: dict[str, Any], names: list[str]) -> None:
    config = make_config(options)
    assert sorted(unread(config.given(), config)) == sorted(names)
    assert sorted(unread(options, config)) == sorted(names)


def test_in_a_comparison_they_are_those_that_no_method_reads() -> None:
    asked = {"clusterer": "hdbscan", "redescribe": 2, "finetune": 3}
    runs = [make_config({**asked, "algorithm": name, "seed": seed}) for name in ("fedavg", "flux") for seed in (1, 2)]
    assert unread(asked, *runs) == ["redescribe"]
    assert unread_in_words(asked, *runs) == ["none of fedavg, flux reads --redescribe"]
    assert unread_in_words(asked, runs[0]) == ["fedavg does not read --clusterer", "fedavg does not read --redescribe"]


def test_python_warns_of_what_is_not_read() -> None:
    with pytest.warns(UserWarning, match="^fedavg does not read --clusterer$"):
        warn_unread(make_config({"algorithm": "fedavg", "clusterer": "hdbscan"}))


def test_adam_has_a_rate_of_its_own_and_no_momentum() -> None:
    for preset in (None, "tuned", "paper", "0.1"):
        told = {"dataset": "mnist", "optimiser": "adam", "preset": preset}
        assert make_config(told).lr == 0.001
        assert make_config({**told, "lr": 0.02}).lr == 0.02
    config = make_config({"optimiser": "adamw", "momentum": 0.5})
    assert unread_in_words(config.given(), config) == ["adamw does not read --momentum"]
    assert unread({"momentum": 0.5}, make_config({"momentum": 0.5})) == []
    own = make_config({"algorithm": "pfedme", "optimiser": "adam", "weight_decay": 0.1, "momentum": 0.5})
    words = ["pfedme does not read --optimiser", "pfedme does not read --weight-decay"]
    assert sorted(unread_in_words(own.given(), own)) == words

"""What can be measured: runners by name, and why one cannot run here."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol

from fedflux.engine import ENGINES
from fedflux.studies.bench.work import Work


class Runner(Protocol):
    """One way of doing the work. Making it is cheap; `start` is what a user waits for before the first round."""

    def start(self) -> None:
        """Everything that happens once."""

    def round(self) -> int:
        """One FedAvg round from the present model; gives the number of examples trained on."""

    def loss(self) -> float:
        """Of the present model, by `Work.loss`."""

    def device_peak(self) -> int | None:
        """Most bytes of device memory in use by processes that this one cannot ask; None: there are none."""

    def close(self) -> None:
        """Leave nothing behind."""


HERE = "fedflux.studies.bench"
RUNNERS = {
    "naive": f"{HERE}.naive:NaiveRunner",
    "loop": f"{HERE}.engines:LoopRunner",
    "loop-per-core": f"{HERE}.per_core:LoopPerCoreRunner",
    "processes": f"{HERE}.engines:ProcessesRunner",
    "stacked": f"{HERE}.engines:StackedRunner",
    "auto": f"{HERE}.engines:AutoRunner",
    "flower-ray": f"{HERE}.peer_flower:FlowerRunner",
    "pfl": f"{HERE}.peer_pfl:PflRunner",
}
OF_ENGINES = ("loop", "processes", "stacked")
PACKAGES = {"flower-ray": ("flwr", "ray"), "pfl": ("pfl",)}


def make_runner(name: str, work: Work) -> Runner:
    """A runner by name; its module, and with it what it is built on, is imported only now."""
    module, _, attribute = RUNNERS[name].partition(":")
    factory: Callable[[Work], Runner] = getattr(import_module(module), attribute)
    return factory(work)


def unavailable(name: str, work: Work) -> str | None:
    """Why a runner cannot do this work here, in one line; None if it can."""
    if name in OF_ENGINES and name not in ENGINES:
        return f"there is no engine '{name}' in this version"
    missing = [package for package in PACKAGES.get(name, ()) if find_spec(package) is None]
    if missing:
        return f"{' and '.join(missing)} not installed: pip install 'fedflux[peers]'"
    if name == "loop-per-core" and work.device != "cpu":
        return "it shows what the CPU's cores can do; use --device cpu"
    if name == "pfl" and work.precision == "bf16":
        return "it is measured in fp32 only"
    return None

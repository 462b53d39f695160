"""The command line's flags, made from the settings that their owners declare, and the decorator that gives them out."""

from collections.abc import Callable, Iterable
from inspect import Parameter, signature
from pathlib import Path
from types import NoneType
from typing import Annotated, Any

import typer

from fedflux.clustering.settings import ClusteringSettings
from fedflux.data.settings import DataSettings
from fedflux.descriptors.settings import DescriptionSettings
from fedflux.engine.settings import MachineSettings, TrainingSettings
from fedflux.runs.config import SETTINGS
from fedflux.runs.presets import PRESETS
from fedflux.settings import PANELS, Panel, Setting, declared, options

FLAGS = {one.name: one for one in sorted(SETTINGS.values(), key=lambda one: PANELS.index(one.panel))}
"""Every setting by name, in the order of the help: what people use first comes first."""


def of(*owners: type, without: Iterable[str] = ()) -> list[str]:
    """The settings of these owners, in the order of the help."""
    names = {one.name for owner in owners for one in declared(owner)} - set(without)
    return [name for name in FLAGS if name in names]


PARTITION = of(DataSettings, without=["drift", "unseen"])
CLUSTERING = of(ClusteringSettings)
_PRIVACY = ("dp", "epsilon", "delta", "privacy_unit")
FIDELITY = of(
    DataSettings,
    DescriptionSettings,
    TrainingSettings,
    MachineSettings,
    without=["drift", "unseen", "level", *_PRIVACY],
)
"""What `fedflux fidelity` reads; the levels are a list there."""


def flag(name: str, text: str, panel: Panel | None = None, metavar: str | None = None) -> Any:
    """An option whose help says its default itself, since that depends on the dataset."""
    return typer.Option(name, help=text, show_default=False, rich_help_panel=panel, metavar=metavar)


Config = Annotated[Path | None, flag("--config", "TOML file with the same keys; flags win", "Run")]
Json = Annotated[
    bool, typer.Option("--json", help="print one JSON object as the last line of stdout", rich_help_panel="Run")
]

On = Annotated[
    str | None,
    flag("--on", "dask: a cluster of --jobs processes here; dask://HOST:PORT: one that is there (default: processes)"),
]


def help_of(setting: Setting) -> str:
    """What a setting means and its default, with the datasets that have another."""
    text = setting.help.replace("{names}", ", ".join(setting.choices))
    default = setting.unset if setting.default is None else str(setting.default)
    if not default or setting.type is bool:
        return text
    others: dict[object, list[str]] = {}
    for dataset, own in PRESETS.items():
        if setting.name in own:
            others.setdefault(own[setting.name], []).append(dataset)
    shown = [default, *(f"{', '.join(datasets)} {value}" for value, datasets in others.items())]
    return f"{text} (default: {'; '.join(shown)})"


def parsed_as(setting: Setting) -> Any:
    """What the command line's parser makes of a value; text where there is more than one way to write it."""
    kinds = [option for option in options(setting.type) if option is not NoneType]
    return kinds[0] if kinds in ([int], [float], [bool]) else str


def parameter(setting: Setting) -> Parameter:
    """The parameter of a command that takes a setting; None where it was not given."""
    kind, option = parsed_as(setting), flag(setting.flag, help_of(setting), setting.panel, setting.metavar)
    return Parameter(setting.name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option])


def takes(names: Iterable[str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the flags of these settings; it receives those that were given as one dict, `requested`."""
    chosen = list(names)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def call(**values: Any) -> None:
            requested = {name: value for name in chosen if (value := values.pop(name)) is not None}
            command(requested=requested, **values)

        own = [p for p in signature(command).parameters.values() if p.name != "requested"]
        parameters = [
            *(parameter(FLAGS[name]) for name in chosen),
            *(p.replace(kind=Parameter.KEYWORD_ONLY) for p in own),
        ]
        call.__name__, call.__doc__ = command.__name__, command.__doc__
        call.__annotations__ = {p.name: p.annotation for p in parameters}
        call.__signature__ = signature(command).replace(parameters=parameters)  # type: ignore[attr-defined]
        return call

    return decorate

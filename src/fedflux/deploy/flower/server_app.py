"""The server's side: one run of FluxStrategy, its result in the folder that the config names."""

from typing import Any

from flwr.serverapp import ServerApp
from torch import nn

from fedflux.deploy.flower.results import save_result
from fedflux.deploy.flower.settings import FlowerSettings, read_settings
from fedflux.deploy.flower.strategy import FluxStrategy
from fedflux.models import build_model

app = ServerApp()


@app.main()  # type: ignore[untyped-decorator]
def main(grid: Any, context: Any) -> None:
    """Run to the end."""
    run(grid, read_settings(context.run_config))


def run(grid: Any, settings: FlowerSettings) -> FluxStrategy:
    """One run over a Grid; the strategy comes back with all it knows."""

    def build(image_shape: tuple[int, int, int], classes: int) -> nn.Module:
        return build_model(settings.model, image_shape, classes, settings.seed)

    strategy = FluxStrategy(settings, build)
    strategy.start(grid)
    if settings.folder is not None:
        save_result(settings.folder, strategy)
    return strategy

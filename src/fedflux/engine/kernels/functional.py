"""A module as a function of its tensors, without the bookkeeping that costs small models a third of a step."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.func import functional_call

from fedflux.engine.stack import Parameters


class Functional:
    """Runs a module's `forward` or `encode` with given tensors in the place of its own.

    The same as `torch.func.functional_call`, down to buffers that the module exchanges, but the places of the tensors
    are looked up once. Modules that hold one tensor under several names are left to torch.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._encoder = _Encoder(model)
        self._places = _places(model)

    def forward(self, params: Parameters, x: Tensor) -> Tensor:
        """The module's logits under these parameters and buffers."""
        if self._places is None:
            logits: Tensor = functional_call(self._model, params, (x,))
            return logits
        return self._run(self._model, self._places, params, x)

    def encode(self, params: Parameters, x: Tensor) -> Tensor:
        """The module's latents under these parameters and buffers."""
        if self._places is None:
            prefixed = {f"model.{name}": tensor for name, tensor in params.items()}
            latents: Tensor = functional_call(self._encoder, prefixed, (x,))
            return latents
        return self._run(self._encoder, self._places, params, x)

    def _run(self, run: Callable[[Tensor], Tensor], places: "_Places", params: Parameters, x: Tensor) -> Tensor:
        before = {name: places[name][0][places[name][1]] for name in params}
        try:
            for name, tensor in params.items():
                holder, leaf = places[name]
                holder[leaf] = tensor
            return run(x)
        finally:
            for name, own in before.items():
                holder, leaf = places[name]
                exchanged = holder[leaf]
                if exchanged is not None:
                    params[name] = exchanged
                holder[leaf] = own


_Places = dict[str, tuple[dict[str, Tensor | None], str]]


def _places(model: nn.Module) -> _Places | None:
    """Where each tensor of the module's state hangs; None where that is not one place a tensor."""
    state = model.state_dict(keep_vars=True)
    if len({id(tensor) for tensor in state.values()}) < len(state):
        return None
    found: _Places = {}
    for name, tensor in state.items():
        path, _, leaf = name.rpartition(".")
        try:
            module = model.get_submodule(path)
        except AttributeError:
            return None
        for holder in (module._parameters, module._buffers):
            if holder.get(leaf) is tensor:
                found[name] = (holder, leaf)  # type: ignore[assignment]
    return found if len(found) == len(state) else None


class _Encoder(nn.Module):
    """A model seen through `encode`, so that a functional call can reach it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        latents: Tensor = self.model.encode(x)  # type: ignore[operator]
        return latents

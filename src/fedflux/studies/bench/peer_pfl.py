"""Apple's pfl-research: its simulated backend and FederatedAveraging, in one process as a plain script runs it.

Every user is drawn once a round (`minimize_reuse`), updates are weighted by datapoints and applied at a central rate
of 1. pfl neither shuffles nor evaluates here, which saves it a little work, and torch has its default threads.
"""

import os
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedflux.studies.bench.work import Work

NEVER = 10**9


class PflRunner:
    """One central iteration of pfl's own loop at a time; `run` goes on where it ended before."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._model = _Described(work.build())
        self._round = 0

    def start(self) -> None:
        """Datasets, backend, model and algorithm."""
        os.environ["PFL_PYTORCH_DEVICE"] = self._work.device  # read when pfl is imported
        from pfl.aggregate.simulate import SimulatedBackend
        from pfl.aggregate.weighting import WeightByDatapoints
        from pfl.algorithm.base import NNAlgorithmParams
        from pfl.algorithm.federated_averaging import FederatedAveraging
        from pfl.data.federated_dataset import FederatedDataset
        from pfl.data.pytorch import PyTorchTensorDataset
        from pfl.data.sampling import get_user_sampler
        from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
        from pfl.model.pytorch import PyTorchModel

        work = self._work
        work.allow_tf32()

        def local_optimiser(parameters: Any, lr: float) -> torch.optim.Optimizer:
            return torch.optim.SGD(parameters, lr=lr, momentum=work.momentum)

        users = {client: PyTorchTensorDataset(work.tensors(client)) for client in range(work.clients)}
        data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(users)))
        self._backend = SimulatedBackend(data, data, [WeightByDatapoints()])
        central = torch.optim.SGD(self._model.to(work.device).parameters(), lr=1.0)
        self._pfl_model = PyTorchModel(self._model, local_optimiser, central)
        self._algorithm = FederatedAveraging()
        self._iterations = NNAlgorithmParams(
            central_num_iterations=0, evaluation_frequency=NEVER, train_cohort_size=work.clients, val_cohort_size=None
        )
        self._training = NNTrainHyperParams(
            local_batch_size=work.batch_size, local_num_epochs=work.epochs, local_learning_rate=work.lr
        )
        self._evaluation = NNEvalHyperParams(local_batch_size=None)

    def round(self) -> int:
        """One central iteration more."""
        self._round += 1
        self._model.seen = 0
        self._algorithm.run(
            replace(self._iterations, central_num_iterations=self._round),
            self._backend,
            self._pfl_model,
            self._training,
            self._evaluation,
            send_metrics_to_platform=False,
        )
        return self._model.seen

    def loss(self) -> float:
        """Of the central model."""
        return self._work.loss(self._model.model.state_dict())

    def device_peak(self) -> int | None:
        """All in this process."""
        return None

    def close(self) -> None:
        """Nothing to end."""


class _Described(nn.Module):
    """A model with the two methods that pfl calls."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.seen = 0

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Mean cross-entropy of a batch."""
        self.train()
        self.seen += len(y)
        return cross_entropy(self.model(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """Nothing is evaluated, though pfl wants it in its first iteration."""
        from pfl.metrics import Weighted

        return {"none": Weighted(0, 1)}

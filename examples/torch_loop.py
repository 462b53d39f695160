"""FLUX in a training loop of one's own: plain PyTorch, no engine, no federation."""

from copy import deepcopy

import torch
from sklearn.datasets import load_digits
from torch import nn

import fedflux as ff

torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
*clients, (newcomer, truth) = [(x[k::7] if k % 2 else 1 - x[k::7], y[k::7]) for k in range(7)]  # even ones: negatives
model = nn.Sequential(nn.Sequential(nn.Linear(64, 32), nn.ReLU()), nn.Linear(32, 10))


def one_round(shared: nn.Module, members: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    own = [deepcopy(shared) for _ in members]
    for copy, (x, y) in zip(own, members, strict=True):
        optimiser = torch.optim.SGD(copy.parameters(), lr=0.1, momentum=0.9)
        for rows in torch.randperm(len(x)).repeat(3).split(16):
            optimiser.zero_grad()
            nn.functional.cross_entropy(copy(x[rows]), y[rows]).backward()
            optimiser.step()
    shared.load_state_dict({k: torch.stack([one.state_dict()[k] for one in own]).mean(0) for k in shared.state_dict()})


for _ in range(3):
    one_round(model, clients)
describer, flux = ff.Describer(model[0], classes=10), ff.FluxClustering()
extractor = flux.extractor([describer.bounds(x) for x, _ in clients])
flux.fit([describer.describe(x, y, extractor) for x, y in clients])
models = [deepcopy(model) for _ in range(flux.n_clusters_)]
for cluster, own in [*enumerate(models)] * 8:
    one_round(own, [client for client, label in zip(clients, flux.labels_, strict=True) if label == cluster])
posterior = flux.predict_proba([describer.scores(newcomer, flux.offer_)])[0]  # of a client without labels
answer = torch.stack([p * own(newcomer).softmax(1) for p, own in zip(posterior, models, strict=True)]).sum(0)
right = float((answer.argmax(1) == truth).float().mean())
print(f"clusters {flux.labels_.tolist()}, newcomer {posterior.tolist()}, {right:.0%} right")

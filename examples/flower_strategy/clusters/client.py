"""A node, of which every other sees negatives: it trains a PyTorch model, and describes its records when asked."""

import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.datasets import load_digits
from torch import nn

import fedflux as ff

app = ClientApp()


def held(message, context):
    model = nn.Sequential(nn.Sequential(nn.Linear(64, 32), nn.ReLU()), nn.Linear(32, 10))
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    node, (images, labels) = int(context.node_config["partition-id"]), load_digits(return_X_y=True)
    x, y = torch.tensor(images[node::8] / 16, dtype=torch.float32), torch.tensor(labels[node::8])
    return model, x if node % 2 else 1 - x, y


@app.train()
def train(message, context):
    model, x, y = held(message, context)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for rows in torch.randperm(len(x)).repeat(3).split(16):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimiser.step()
    metrics = MetricRecord({"num-examples": len(x), "right": float((model(x).argmax(1) == y).float().mean())})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


@app.query()
def answer(message, context):
    model, x, y = held(message, context)
    describer = ff.Describer(model[0], classes=10)
    extractor = {name: array.numpy() for name, array in message.content["question"].items()}
    told = describer.describe(x, y, extractor) if extractor else describer.bounds(x)
    return Message(RecordDict({"answer": ArrayRecord({n: Array(a) for n, a in told.items()})}), reply_to=message)

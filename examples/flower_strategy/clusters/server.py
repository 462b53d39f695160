"""The server: eight rounds of the strategy, with clusters from the fourth on."""

from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from torch import nn

from clusters.strategy import ClusteredFedAvg

app = ServerApp()


@app.main()
def main(grid, context):
    model = nn.Sequential(nn.Sequential(nn.Linear(64, 32), nn.ReLU()), nn.Linear(32, 10))
    strategy = ClusteredFedAvg(fraction_evaluate=0.0)
    strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=8)
    print("clusters", strategy.cluster)

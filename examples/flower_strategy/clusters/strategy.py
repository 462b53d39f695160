"""A Flower strategy of one's own with FLUX's clusters: federated averaging, then a model for every cluster."""

from flwr.app import Array, ArrayRecord, Message, MessageType, RecordDict
from flwr.serverapp.strategy import FedAvg

import fedflux as ff


class ClusteredFedAvg(FedAvg):
    """Finds clusters before round `when`; from then on nodes train their cluster's model."""

    def __init__(self, when=4, **options):
        super().__init__(**options)
        self.when, self.flux, self.cluster, self.models = when, ff.FluxClustering(), {}, {}

    def ask(self, grid, arrays, question):
        """Every node's answer under one model: its bounds, or with an extractor its descriptor."""
        content = RecordDict({"arrays": arrays, "question": ArrayRecord({n: Array(a) for n, a in question.items()})})
        asked = grid.send_and_receive([Message(content, node, MessageType.QUERY) for node in grid.get_node_ids()])
        told = {one.metadata.src_node_id: one.content["answer"] for one in asked if one.has_content()}
        return {node: {name: array.numpy() for name, array in record.items()} for node, record in told.items()}

    def configure_train(self, server_round, arrays, config, grid):
        """What FedAvg sends, with every node's own cluster's model in it."""
        if server_round == self.when:
            told = self.ask(grid, arrays, self.flux.extractor([*self.ask(grid, arrays, {}).values()]))
            self.cluster = dict(zip(told, self.flux.fit([*told.values()]).labels_.tolist(), strict=True))
            self.models = dict.fromkeys(self.cluster.values(), arrays)
        for one in super().configure_train(server_round, arrays, config, grid):
            own = self.models.get(self.cluster.get(one.metadata.dst_node_id), arrays)
            yield Message(RecordDict({**one.content, "arrays": own}), one.metadata.dst_node_id, MessageType.TRAIN)

    def aggregate_train(self, server_round, replies):
        """FedAvg within every cluster, and over all."""
        replies = [*replies]
        for label, before in self.models.items():
            own = [one for one in replies if self.cluster.get(one.metadata.src_node_id) == label]
            self.models[label] = super().aggregate_train(server_round, own)[0] or before
        return super().aggregate_train(server_round, replies)

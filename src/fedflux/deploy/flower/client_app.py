"""The node's side: answers to `train`, `evaluate`, `query.hello`, `query.bounds`, `query.descriptor`, `query.assign`.

Every message may start a process of its own, so what only one kind of question needs is imported where it is answered.
"""

from typing import Any

from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedflux.deploy.flower.local_work import LocalWork, MissingModelError
from fedflux.deploy.flower.records import ABOUT, ASK, BOUNDS, DESCRIPTOR, EXAMPLES, METRICS, MODEL, pack, unpack
from fedflux.engine.modes import one_thread

app = ClientApp()


def _reply(message: Any, records: dict[str, Any]) -> Any:
    return Message(RecordDict(records), reply_to=message)


def _missing(message: Any) -> Any:
    return _reply(message, {ABOUT: ConfigRecord({"missing": True})})


@app.query("hello")  # type: ignore[untyped-decorator]
def hello(message: Any, context: Any) -> Any:
    """Who this node is and what kind of data it holds."""
    return _reply(message, {ABOUT: ConfigRecord(LocalWork.of(context).introduction())})


@app.train()  # type: ignore[untyped-decorator]
def train(message: Any, context: Any) -> Any:
    """Local training from the model that was sent or is held."""
    ask = message.content[ASK]
    work = LocalWork.of(context)
    try:
        with one_thread():
            trained, examples = work.train(work.model(message.content), int(ask["round"]))
    except MissingModelError:
        return _missing(message)
    about = ConfigRecord({"base": str(ask["model"]), "client": work.client})
    return _reply(message, {MODEL: pack(trained), METRICS: MetricRecord({EXAMPLES: examples}), ABOUT: about})


@app.evaluate()  # type: ignore[untyped-decorator]
def evaluate(message: Any, context: Any) -> Any:
    """Accuracy of the model that was sent or is held, on the part of the data that is asked for."""
    ask = message.content[ASK]
    work = LocalWork.of(context)
    try:
        with one_thread():
            model = work.model(message.content)
            accuracy, examples = work.evaluate(model, str(ask["split"]))
    except MissingModelError:
        return _missing(message)
    if ask.get("keep", False):
        work.keep(model, {"cluster": int(ask["cluster"]), "round": int(ask["round"])})
    about = ConfigRecord({"base": str(ask["model"])})
    return _reply(message, {METRICS: MetricRecord({"accuracy": accuracy, EXAMPLES: examples}), ABOUT: about})


@app.query("bounds")  # type: ignore[untyped-decorator]
def bounds(message: Any, context: Any) -> Any:
    """S1: the range of this node's latents under the model."""
    work = LocalWork.of(context)
    try:
        with one_thread():
            found = work.bounds(work.model(message.content))
    except MissingModelError:
        return _missing(message)
    return _reply(message, {BOUNDS: pack(found), ABOUT: ConfigRecord({"base": str(message.content[ASK]["model"])})})


@app.query("descriptor")  # type: ignore[untyped-decorator]
def descriptor(message: Any, context: Any) -> Any:
    """S3: the descriptor of this node's labelled data under the model and the bounds."""
    return _described(message, LocalWork.of(context), labelled=True)


@app.query("assign")  # type: ignore[untyped-decorator]
def assign(message: Any, context: Any) -> Any:
    """For nodes without labels: first the label-free descriptor is asked for, then the fitting model comes."""
    work, ask = LocalWork.of(context), message.content[ASK]
    if ask["step"] == "describe":
        return _described(message, work, labelled=False)
    try:
        model = work.model(message.content)
    except MissingModelError:
        return _missing(message)
    told = {"cluster": int(ask["cluster"]), "distance": float(ask["distance"]), "round": int(ask["round"])}
    work.keep(model, told)
    return _reply(message, {ABOUT: ConfigRecord({"base": str(ask["model"]), "cluster": told["cluster"]})})


def _described(message: Any, work: LocalWork, labelled: bool) -> Any:
    ask = message.content[ASK]
    try:
        with one_thread():
            model = work.model(message.content)
            found = work.describe(model, unpack(message.content[BOUNDS]), dict(ask), labelled)
    except MissingModelError:
        return _missing(message)
    about = ConfigRecord({"base": str(ask["model"]), "bounds-version": str(ask["bounds-version"])})
    return _reply(message, {DESCRIPTOR: pack(found), ABOUT: about})

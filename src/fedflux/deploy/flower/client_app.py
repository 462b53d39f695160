"""The node's app: one answer to every kind of question.

Every message may start a process of its own, so what only some questions need is imported where it is answered.
"""

from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from fedflux.data.holding import NothingToTellError
from fedflux.deploy.flower import records
from fedflux.deploy.node.answering import Answer, LocalNode, MissingModelsError
from fedflux.deploy.node.memory import OnDisk
from fedflux.engine import DivergedError
from fedflux.engine.modes import one_thread
from fedflux.errors import FedfluxError

app = ClientApp()


@app.train()  # type: ignore[untyped-decorator]
@app.evaluate()  # type: ignore[untyped-decorator]
@app.query("hello")  # type: ignore[untyped-decorator]
@app.query("ask")  # type: ignore[untyped-decorator]
@app.query("copy_slot")  # type: ignore[untyped-decorator]
@app.query("hand_out")  # type: ignore[untyped-decorator]
def answer(message: Any, context: Any) -> Any:
    """What this node says: an answer, which models it lacks, or in words why it does not answer."""
    try:
        with one_thread():
            found = _answer(message.content, context)
    except MissingModelsError as missing:
        found = Answer(about={"missing": [str(name) for name in missing.args]})
    except DivergedError as diverged:
        found = Answer(about={"diverged": str(diverged)})
    except (FedfluxError, NothingToTellError) as refusal:
        found = Answer(about={"declined": str(refusal)})
    content: dict[str, Any] = {records.ABOUT: ConfigRecord({"base": records.version(message.content), **found.about})}
    content |= {f"{records.MODELS}/{row}": records.pack_model(model) for row, model in enumerate(found.models)}
    arrays = ((records.ANSWER, found.arrays), (records.TOLD, found.told))
    content |= {name: records.pack(told) for name, told in arrays if told}
    return Message(RecordDict(content), reply_to=message)


def _answer(content: Any, context: Any) -> Answer:
    folder = context.node_config.get("state-dir")
    memory = OnDisk(Path(str(folder))) if folder else records.InContext(context.state)
    models = {name: content[name] for name in content if name not in (records.ASK, records.ARRAYS)}
    request = records.from_records(content)
    node = LocalNode.of(context.node_config, context.run_config, memory)
    return node.answer(request, {name: records.unpack_model(one, records.MOST) for name, one in models.items()})

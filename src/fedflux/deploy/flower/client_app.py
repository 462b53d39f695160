"""The node's app: one answer to every kind of question.

Every message may start a process of its own, so what only some questions need is imported where it is answered.
"""

from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from fedflux.data.holding import NothingToTellError
from fedflux.deploy.flower.node import Answer, LocalNode, MissingModelsError
from fedflux.deploy.flower.records import ABOUT, ANSWER, TOLD
from fedflux.deploy.flower.requests import version
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
            found = LocalNode.of(context).answer(message.content)
    except MissingModelsError as missing:
        found = Answer(about={"missing": [str(name) for name in missing.args]})
    except DivergedError as diverged:
        found = Answer(about={"diverged": str(diverged)})
    except (FedfluxError, NothingToTellError) as refusal:
        found = Answer(about={"declined": str(refusal)})
    records = {name: record for name, record in ((ANSWER, found.answer), (TOLD, found.told)) if record}
    about = ConfigRecord({"base": version(message.content), **(found.about or {})})
    return Message(RecordDict({**records, ABOUT: about}), reply_to=message)

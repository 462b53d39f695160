"""`flower-superexec` for a node whose app starts warm.

Flower starts a process for every message, which then imports torch for seconds. Here that process is a fork of one that
has imported everything already: `flower-supernode --isolation process --port 9094 …`, and beside it
`python -m fedflux.deploy.flower.warm --insecure --runtime-api-address 127.0.0.1:9094`.
"""

import os
import signal
from pathlib import Path
from typing import Any

from flwr.supercore.cli.flower_superexec import flower_superexec
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import LaunchResult, SubprocessExecutor, factory
from flwr.supernode.runtime.run_clientapp import run_clientapp

SIGNALS = (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)


class ForkingExecutor(SubprocessExecutor):  # type: ignore[misc]
    """Client apps as forks of this process; anything else as a process of its own."""

    def launch(self, spec: Any) -> Any:
        """Begin a task, and do not wait for it."""
        if spec.task_type != TaskType.CLIENT_APP:
            return super().launch(spec)
        if os.fork() == 0:
            self._answer(spec)
        return LaunchResult.accepted()

    def _answer(self, spec: Any) -> None:
        """One message, to the end of this process; the node is told of its outcome by Flower itself."""
        try:
            for number in SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            path = spec.root_certificates_path
            certificates = None if path is None else Path(path).read_bytes()
            run_clientapp(spec.runtime_api_address, spec.token, spec.insecure, certificates, spec.parent_pid)
        finally:
            os._exit(0)


def main() -> None:
    """What `flower-superexec` does, with its arguments."""
    import fedflux.algorithms
    import fedflux.deploy.flower.client_app  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    factory.SubprocessExecutor = ForkingExecutor
    flower_superexec()


if __name__ == "__main__":
    main()

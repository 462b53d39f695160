"""A whole deployment on one machine, with TLS and node authentication: real processes, real keys, loopback addresses.

`python -m fedflux.deploy.flower.loopback --app examples/flower --nodes 6 --unlabelled 4,5` makes a CA and node keys,
starts a SuperLink and the SuperNodes, runs the app and stops all it started, on Ctrl-C too.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

from fedflux.deploy.flower.family import family, kill_family
from fedflux.deploy.flower.keys import make_certificates, make_node_key
from fedflux.errors import FedfluxError

HOST = "127.0.0.1"
CONNECTION = "secure"
"""The name of this SuperLink in Flower's own configuration."""
PATIENCE = 60.0
"""Seconds for a process to come up, or to go."""


class Loopback:
    """A SuperLink and SuperNodes in a folder; leaving the `with` block stops every process that was started in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.port = free_port()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Loopback":
        make_certificates(self.folder / "certificates")
        home = self.folder / "flwr-home"
        home.mkdir(parents=True, exist_ok=True)
        certificate = self.folder / "certificates" / "ca.crt"
        told = f'[superlink.{CONNECTION}]\naddress = "{HOST}:{self.port}"\nroot-certificates = "{certificate}"\n'
        (home / "config.toml").write_text(told, encoding="utf-8")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def environment(self) -> dict[str, str]:
        """That of this process, with Flower kept to itself and its commands found where Python is."""
        commands = str(Path(sys.executable).parent)
        return {
            **os.environ,
            "PATH": os.pathsep.join([commands, os.environ.get("PATH", "")]),
            "FLWR_HOME": str(self.folder / "flwr-home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3",
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
        }

    def start_superlink(self, ray: bool = False) -> None:
        """The server; nodes, keys and runs are kept in a database, so that it may be killed and started again.

        With `ray` it runs its nodes itself, as Flower's simulation on Ray does, and none are to be started.
        """
        certificates = self.folder / "certificates"
        self._start(
            "superlink",
            "flower-superlink",
            *("--host", HOST, "--port", str(self.port)),
            *("--ssl-ca-certfile", str(certificates / "ca.crt")),
            *("--ssl-certfile", str(certificates / "server.crt")),
            *("--ssl-keyfile", str(certificates / "server.key")),
            "--simulation" if ray else "--enable-supernode-auth",
            *("--database", str(self.folder / "superlink.db")),
            "--disable-runtime-dependency-installation",
        )
        deadline = time.monotonic() + PATIENCE
        while not _listening(self.port):
            if self._processes["superlink"].poll() is not None or time.monotonic() > deadline:
                raise FedfluxError(f"the SuperLink did not come up: see {self.log('superlink')}")
            time.sleep(0.2)

    def make_node(self, name: str, register: bool = True) -> None:
        """A key pair for a node; an unregistered one will be refused."""
        key = self.folder / "keys" / name
        make_node_key(key)
        if register:
            self.flwr("supernode", "register", f"{key}.pub", CONNECTION)

    def start_node(self, name: str, config: Mapping[str, Any]) -> None:
        """A SuperNode with its key and its own configuration, and the process that its app's processes are forks of."""
        told, port = " ".join(f"{key}={_toml(value)}" for key, value in config.items()), str(free_port())
        node = self._start(
            name,
            "flower-supernode",
            *("--superlink", f"{HOST}:{self.port}"),
            *("--root-certificates", str(self.folder / "certificates" / "ca.crt")),
            *("--auth-supernode-private-key", str(self.folder / "keys" / name)),
            *("--node-config", told),
            *("--isolation", "process", "--port", port),
        )
        warm = ("-m", "fedflux.deploy.flower.warm", "--insecure", "--runtime-api-address", f"{HOST}:{port}")
        self._start(f"{name}-apps", "python", *warm, "--parent-pid", str(node.pid))

    def submit(
        self, app: Path, config: Mapping[str, Any], name: str = "run", simulated: int = 0
    ) -> "subprocess.Popen[bytes]":
        """`flwr run`, which streams the run's log until it ends; `simulated` is how many nodes Ray is to run."""
        told = " ".join(f"{key}={_toml(value)}" for key, value in config.items())
        ray = f"num-supernodes={simulated} client-resources-num-cpus=1 init-args-num-cpus={os.cpu_count() or 1}"
        federation = ("--federation-config", ray) if simulated else ()
        return self._start(name, "flwr", "run", str(app), CONNECTION, "--stream", "--run-config", told, *federation)

    def flwr(self, *arguments: str) -> str:
        """A short `flwr` command, to its end."""
        done = subprocess.run(
            [self._command("flwr"), *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        if done.returncode:
            raise FedfluxError(f"flwr {' '.join(arguments[:2])} failed: {(done.stdout + done.stderr).strip()}")
        return done.stdout

    def log(self, name: str) -> Path:
        """Where a process's output goes."""
        return self.folder / "logs" / f"{name}.log"

    def returncode(self, name: str) -> int | None:
        """How a process ended, None while it runs."""
        return self._processes[name].poll()

    def kill(self, name: str) -> None:
        """SIGKILL for a process and everything it started, as a power cut would."""
        processes = [self._processes.pop(one) for one in (name, f"{name}-apps") if one in self._processes]
        kill_family(family(process.pid for process in processes))
        for process in processes:
            process.wait()

    def stop(self) -> None:
        """Ask everyone to end, then make them: nodes first, the SuperLink last."""
        processes = list(reversed(self._processes.values()))
        members = family(process.pid for process in processes)
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + 10
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline - time.monotonic(), 0.1))
        kill_family([*members, *family(process.pid for process in processes)])
        for process in processes:
            process.wait()
        self._processes.clear()

    def _start(self, name: str, command: str, *arguments: str) -> "subprocess.Popen[bytes]":
        self.log(name).parent.mkdir(parents=True, exist_ok=True)
        with self.log(name).open("ab") as output:
            process = subprocess.Popen(
                [self._command(command), *arguments],
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes[name] = process
        return process

    def _command(self, name: str) -> str:
        path = Path(sys.executable).parent / name
        if not path.exists():
            raise FedfluxError(f"{name} is not installed beside {sys.executable}: pip install 'fedflux[flower]'")
        return str(path)


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else f'"{value}"'


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m fedflux.deploy.flower.loopback", description=__doc__)
    parser.add_argument("--app", type=Path, required=True, help="a Flower app folder")
    parser.add_argument("--nodes", type=int, default=4, help="how many SuperNodes")
    parser.add_argument("--unlabelled", default="", help="numbers of the nodes without labels, such as 4,5")
    parser.add_argument("--ray", action="store_true", help="simulate the nodes on Ray instead of starting SuperNodes")
    parser.add_argument("--out", type=Path, help="where keys, logs, checkpoints and the result stay")
    parser.add_argument("--config", action="append", default=[], metavar="KEY=VALUE", help="run config, TOML values")
    told = parser.parse_args(arguments)
    unlabelled = {int(number) for number in told.unlabelled.split(",") if number}
    if told.ray and unlabelled:
        parser.error("--unlabelled needs SuperNodes with a configuration each; leave out --ray")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with TemporaryDirectory(prefix="fedflux-") as temporary, Loopback(told.out or Path(temporary)) as here:
        try:
            return _run(here, told.app.resolve(), told.nodes, unlabelled, told.config, told.ray)
        except KeyboardInterrupt:
            print("stopping all that was started", file=sys.stderr)
            return 130


def _run(here: Loopback, app: Path, nodes: int, unlabelled: set[int], config: Sequence[str], ray: bool) -> int:
    here.start_superlink(ray)
    for number in range(0 if ray else nodes):
        here.make_node(f"node-{number}")
        node = {"partition-id": number, "num-partitions": nodes, "labels": number not in unlabelled}
        folders = {f"{what}-dir": str(here.folder / what / f"node-{number}") for what in ("model", "state")}
        here.start_node(f"node-{number}", {**node, **folders})
    settings = {"out": str(here.folder / "run"), "min-nodes": nodes - len(unlabelled), "clients": nodes}
    running = here.submit(app, settings | dict(_pair(one) for one in config), simulated=nodes if ray else 0)
    with here.log("run").open(encoding="utf-8", errors="replace") as log:
        while True:
            over = running.poll() is not None
            print(log.read(), end="", flush=True)
            if over:
                break
            time.sleep(0.2)
    result = here.folder / "run" / "result.json"
    if not result.exists():
        print(f"the run left no result: see {here.log('run')} and {here.log('superlink')}", file=sys.stderr)
        return 1
    print(result.read_text(encoding="utf-8"))
    return 0


def _pair(told: str) -> tuple[str, Any]:
    key, _, value = told.partition("=")
    try:
        return key, int(value)
    except ValueError:
        return key, {"true": True, "false": False}.get(value, value)


if __name__ == "__main__":
    sys.exit(main())

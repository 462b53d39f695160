"""ε that a node has spent; on disk, since a restart must not make it forget."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from fedflux.errors import FedfluxError
from fedflux.files import read_object, write_json

LEDGER, LOCK = "ledger.json", "ledger.lock"


@dataclass(frozen=True)
class Ledger:
    """An account for each promise of privacy that a run was given, in a node's own folder."""

    folder: Path
    most: float | None
    """The node's `max-epsilon`."""

    def alone(self) -> FileLock:
        """To be held from the look at what was released until a release is kept: other processes wait meanwhile."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return FileLock(self.folder / LOCK)

    def charge(self, run: str, privacy: Any, key: str, splits: frozenset[str]) -> None:
        """Enter a release before it is made, or refuse it.

        A promise's ε is paid once, for as many releases of the same records as it is for; parts of the data that share
        no record cost together what one of them costs. Different promises, and different runs, add up.
        """
        accounts = self._accounts()
        name = f"{run}: {privacy.mechanism}, epsilon {privacy.epsilon:g}, delta {privacy.delta:g}, {privacy.releases}"
        name += " and scaling" if privacy.scaling else ""
        mine = accounts.setdefault(name, {"epsilon": privacy.epsilon, "releases": {}})
        if key in mine["releases"]:
            return
        for split in sorted(splits):
            count = sum(split in of for of in mine["releases"].values())
            most = 1 if split.startswith("scaling") else privacy.releases
            if count >= most:
                raise FedfluxError(f"its {split} part was released {count} times, and ε is for {most}")
        mine["releases"][key] = sorted(splits)
        total = sum(one["epsilon"] for one in accounts.values())
        if self.most is not None and total > self.most + 1e-9:
            raise FedfluxError(f"ε would be {total:g} in all, and this node's max-epsilon is {self.most:g}")
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / LEDGER, accounts)

    def _accounts(self) -> dict[str, Any]:
        path = self.folder / LEDGER
        found = read_object(path)
        if found is None and path.exists():
            raise FedfluxError(f"{path} is damaged, so nobody knows what was spent: mend it, or name another state-dir")
        return found or {}

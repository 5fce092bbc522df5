"""Trainable classes that tests run in real processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lockstep import tune


class Counter(tune.Trainable):
    """Adds ``by`` at each step; keeps its sum as a dict."""

    def setup(self, config: dict[str, Any], offset: int = 0) -> None:
        self.total = float(offset)
        self.by = config.get("by", 1)
        self.until = config.get("until", 6)
        note(config, f"setup {self.by}")

    def step(self) -> dict[str, Any]:
        if self.config.get("fail_at") == self.iteration:
            note(self.config, "failing")
            if notes(self.config).count("failing") == 1:
                raise RuntimeError("raised on purpose")
        self.total += self.by
        return {
            "total": self.total,
            "seen": self.iteration,
            "done": self.iteration + 1 >= self.until,
        }

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any] | str | None:
        note(self.config, f"save {self.iteration}")
        return {"total": self.total}

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.total = checkpoint["total"]
        note(self.config, f"load {self.total}")

    def cleanup(self) -> None:
        note(self.config, "cleanup")


class Filed(Counter):
    """The same with a file."""

    def save_checkpoint(self, checkpoint_dir: str) -> str:
        path = Path(checkpoint_dir, "total.txt")
        path.write_text(str(self.total))
        return str(path)

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.total = float(Path(checkpoint, "total.txt").read_text())
        note(self.config, f"load {self.total}")


class Whereabouts(tune.Trainable):
    """Says where it is."""

    def step(self) -> dict[str, Any]:
        return {
            "id": self.trial_id,
            "name": self.trial_name,
            "directory": self.logdir,
            "resources": self.trial_resources,
            "done": True,
        }


class Greedy(Counter):
    """Needs two CPUs."""

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> Any:
        return {"cpu": config.get("cpus", 2)}


def note(config: dict[str, Any], text: str) -> None:
    if "notes" in config:
        with open(config["notes"], "a") as file:
            file.write(text + "\n")


def notes(config: dict[str, Any]) -> list[str]:
    return Path(config["notes"]).read_text().splitlines()

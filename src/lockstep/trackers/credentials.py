"""Checks before a run starts: whether trackers' libraries are installed, and have their keys."""

from __future__ import annotations

import contextlib
import importlib.util
import netrc
import os
from pathlib import Path
from urllib.parse import urlsplit

from lockstep import runtime, settings

__all__ = [
    "check_comet_key",
    "check_databricks",
    "check_wandb_key",
    "init_variables",
    "read_key",
    "require",
    "variable",
]


def require(module: str, extra: str, who: str) -> None:
    """Check that a library is installed.

    Raises:
        ImportError: it is not; the message has the command to install it.
    """
    if importlib.util.find_spec(module) is None:
        raise ImportError(
            f"{who} needs the package {module}, which is not installed: "
            f"pip install 'lockstep-train[{extra}]'."
        )


def variable(name: str) -> str | None:
    """Return a variable as workers see it: from ``lockstep.init()``, or from this process."""
    return runtime.current().env_vars.get(name) or settings.library_variable(name)


def init_variables(*prefixes: str) -> dict[str, str]:
    """Return the variables with these prefixes that ``lockstep.init()`` sets for workers only."""
    env_vars = runtime.current().env_vars
    return {name: value for name, value in env_vars.items() if name.startswith(prefixes)}


def read_key(api_key: str | None, api_key_file: str | os.PathLike[str] | None) -> str | None:
    """Return the key that was given, directly or in a file; None if neither was given.

    Raises:
        ValueError: both were given, or the key is empty.
        FileNotFoundError: the file does not exist.
    """
    if api_key is not None and api_key_file is not None:
        raise ValueError("api_key and api_key_file were both given; give one of them.")
    if api_key_file is not None:
        path = Path(api_key_file).expanduser()
        if not path.is_file():
            raise FileNotFoundError(
                f"api_key_file={os.fspath(api_key_file)!r}: there is no such file; write the key "
                "into it, where every node can read it."
            )
        api_key = path.read_text().strip()
        if not api_key:
            raise ValueError(f"api_key_file={os.fspath(api_key_file)!r} is empty.")
    if api_key is not None and (not isinstance(api_key, str) or not api_key.strip()):
        raise ValueError("api_key is empty; leave it out to use the environment's.")
    return api_key


def check_wandb_key(mode: str | None) -> None:
    """Check that Weights & Biases will find a key.

    Raises:
        ValueError: there is no key, and ``mode`` needs one.
    """
    mode = mode or variable("WANDB_MODE") or "online"
    if mode in ("offline", "disabled", "dryrun") or variable("WANDB_API_KEY"):
        return
    file = Path(variable("NETRC") or "~/.netrc").expanduser()
    with contextlib.suppress(OSError, netrc.NetrcParseError):
        known = netrc.netrc(str(file)).hosts
        if known and _wandb_host() in known:
            return
    raise ValueError(
        "Weights & Biases has no API key: give api_key or api_key_file, run `wandb login`, set it "
        "for all workers with lockstep.init(runtime_env={'env_vars': {'WANDB_API_KEY': …}}), or "
        "log to files with mode='offline'."
    )


def _wandb_host() -> str:
    import wandb  # the default service depends on wandb's version

    address = variable("WANDB_BASE_URL") or wandb.Settings().base_url
    return urlsplit(address).hostname or ""


def check_comet_key() -> None:
    """Check that Comet will find a key.

    Raises:
        ValueError: there is no key.
    """
    if variable("COMET_API_KEY"):
        return
    named = variable("COMET_CONFIG")
    for file in (Path(named or "~/.comet.config").expanduser(), Path(".comet.config")):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if "api_key" in file.read_text():
                return
    raise ValueError(
        "Comet has no API key: give api_key, run `comet login`, set it for all workers with "
        "lockstep.init(runtime_env={'env_vars': {'COMET_API_KEY': …}}), or write an archive with "
        "online=False."
    )


def check_databricks(tracking_uri: str | None) -> None:
    """Check that there is a login for a Databricks tracking URI.

    Raises:
        ValueError: there are neither variables nor a config file.
    """
    uri = tracking_uri or variable("MLFLOW_TRACKING_URI") or ""
    if not uri.startswith("databricks") or variable("DATABRICKS_HOST"):
        return
    file = Path(variable("DATABRICKS_CONFIG_FILE") or "~/.databrickscfg").expanduser()
    if file.is_file():
        return
    raise ValueError(
        f"tracking_uri={uri!r}: {file} does not exist, so MLflow cannot log in; run `databricks "
        "configure --token`, move ~/.databrickscfg to storage that all nodes share, and name it in "
        "the variable DATABRICKS_CONFIG_FILE."
    )

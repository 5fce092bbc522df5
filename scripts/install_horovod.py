"""Install Horovod for PyTorch, over gloo, into the environment this script is run with.

    python scripts/install_horovod.py            # PyTorch has to be installed there already
    python scripts/install_horovod.py --check    # only say what is missing
    python scripts/install_horovod.py --quick    # for tests: a third of the build, little optimised

Horovod's last release asks for C++14, which the headers of current PyTorch releases no longer
compile with. This takes Horovod's own source package, raises the standard to C++17 in its two
CMakeLists, and builds it without MPI. It needs a C++ compiler, make and CMake
(``pip install cmake``), and takes some minutes.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from pathlib import Path

VERSION = "0.28.1"
STANDARD = re.compile(r"set\(CMAKE_CXX_STANDARD 1[14]\)")
EXTENSION = "horovod/torch/CMakeLists.txt"
TO_PATCH = ("CMakeLists.txt", EXTENSION)
# Horovod builds with -O3 and debug information. The name of the build type has to stay: setup.py
# looks for the library in a directory of that name.
OPTIMISED = re.compile(r'string\(REPLACE "-O2" "-O3" CMAKE_CXX_FLAGS_RELWITHDEBINFO .*\)')
QUICK = 'set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -DNDEBUG")'
# All files of the extension as one: PyTorch's headers, most of the work, are read once.
UNITY = "\nset(CMAKE_UNITY_BUILD ON)\nset(CMAKE_UNITY_BUILD_BATCH_SIZE 0)"


def main() -> None:
    """Check, download, patch, build, prove."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("--check", action="store_true", help="only say what is missing")
    arguments.add_argument("--quick", action="store_true", help="optimise little, for tests")
    chosen = arguments.parse_args()
    if missing := missing_tools():
        sys.exit(f"install_horovod: {'; '.join(missing)}.")
    if chosen.check:
        print("install_horovod: everything that the build needs is here")
        return
    with tempfile.TemporaryDirectory(prefix="install-horovod-") as directory:
        source = unpack(download(directory), directory)
        patch(source, quick=chosen.quick)
        build(source)
    prove()


def missing_tools() -> list[str]:
    """What has to be installed first, each with how."""
    missing = []
    if importlib.util.find_spec("torch") is None:
        missing.append(f"PyTorch is not installed for {sys.executable}: pip install torch")
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        missing.append("there is no C++ compiler: apt install g++ (or xcode-select --install)")
    if shutil.which("make") is None:
        missing.append("there is no make: apt install make (or xcode-select --install)")
    if cmake() is None:
        missing.append("there is no CMake: pip install cmake")
    return missing


def cmake() -> str | None:
    """The CMake beside this interpreter, which need not be on the path, or the system's."""
    return shutil.which("cmake", path=sysconfig.get_path("scripts")) or shutil.which("cmake")


def pip(*arguments: str, **variables: str) -> None:
    """Run this interpreter's pip; a failure ends the script."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, env={**os.environ, **variables})
    if done.returncode:
        sys.exit(
            f"install_horovod: pip {arguments[0]} failed (exit code {done.returncode}), above."
        )


def download(directory: str) -> Path:
    """Horovod's source package."""
    # pip asks the package for its dependencies, with the build tools of this environment.
    pip("install", "-q", "setuptools", "wheel", "packaging", "cloudpickle", "psutil", "pyyaml")
    source = f"horovod=={VERSION}"
    only_source = ("--no-deps", "--no-binary", "horovod", "--no-build-isolation")
    pip("download", "-q", *only_source, "--dest", directory, source)
    return Path(directory, f"horovod-{VERSION}.tar.gz")


def unpack(archive: Path, directory: str) -> Path:
    """Its directory."""
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(directory, filter="data")
        else:
            tar.extractall(directory)
    return Path(directory, f"horovod-{VERSION}")


def patch(source: Path, *, quick: bool) -> None:
    """Raise the C++ standard; with ``quick``, optimise little and leave out debug information."""
    for name in TO_PATCH:
        file = source / name
        unity = UNITY if quick and name == EXTENSION else ""
        text, count = STANDARD.subn("set(CMAKE_CXX_STANDARD 17)" + unity, file.read_text())
        if not count:
            sys.exit(f"install_horovod: {name} of Horovod {VERSION} sets no C++ standard to raise.")
        # Where the line is another one, the build takes longer, and that is all.
        file.write_text(OPTIMISED.sub(QUICK, text) if quick else text)


def build(source: Path) -> None:
    """Build it against the PyTorch that is installed, and install it."""
    found = cmake()
    assert found is not None
    pip(
        "install",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--force-reinstall",
        "--no-cache-dir",
        str(source),
        HOROVOD_CMAKE=found,
        HOROVOD_WITH_GLOO="1",
        HOROVOD_WITHOUT_MPI="1",
        HOROVOD_WITH_PYTORCH="1",
        HOROVOD_WITHOUT_TENSORFLOW="1",
        HOROVOD_WITHOUT_MXNET="1",
        # CMake 4 refuses the minimum versions that Horovod's third parties name.
        CMAKE_POLICY_VERSION_MINIMUM="3.5",
        MAKEFLAGS=f"-j{os.cpu_count() or 1}",  # and not those of a make that runs this script
    )


def prove() -> None:
    """One process, one allreduce, in a fresh interpreter."""
    code = (
        "import torch, horovod.torch as hvd; hvd.init(); "
        "assert hvd.allreduce(torch.ones(1)).item() == 1.0; hvd.shutdown()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tempfile.gettempdir())
    if done.returncode:
        sys.exit("install_horovod: Horovod was built, but does not run (above).")
    print(f"install_horovod: Horovod {VERSION} is installed, and works with this PyTorch")


if __name__ == "__main__":
    main()

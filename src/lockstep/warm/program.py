"""Runs a script, a module or a piece of code in this process, as ``python`` would.

Imported before the user's program begins, so imports here stay cheap.
"""

from __future__ import annotations

import os
import sys
from importlib import machinery
from types import CodeType, ModuleType, TracebackType
from typing import Any, NamedTuple, NoReturn

from lockstep import ray_names

__all__ = ["CODE", "MODULE", "SCRIPT", "Program", "end_by_interrupt", "prepare", "run_program"]

SCRIPT, MODULE, CODE = "script", "-m", "-c"
_PYC = ".pyc"


class Program(NamedTuple):
    """What to run, as on Python's command line."""

    kind: str
    """``SCRIPT``, ``MODULE`` or ``CODE``."""
    target: str
    """The script's path (a directory, a zip file, or ``-`` for stdin), the module, or the code."""
    arguments: tuple[str, ...] = ()


def prepare(source: bytes | None) -> None:
    """Called once, before the program's code is compiled.

    Args:
        source: the program's own text; None where there is none (a module that is not found).
    """
    ray_names.install()  # where the program imports ray, it gets lockstep


def run_program(program: Program) -> Any:
    """Run it as ``__main__``; returns what to pass to ``sys.exit``.

    ``sys.path`` must be as the interpreter has made it, without its entry for the program. An
    exception of the program is shown as the interpreter does, without a frame of lockstep.

    Raises:
        KeyboardInterrupt: the program did not catch it. It has been shown: see
            ``end_by_interrupt``.
    """
    try:
        _RUN[program.kind](program)
    except SystemExit as error:
        return error.code
    except BaseException as error:
        code = _show(error)
        if type(error) is KeyboardInterrupt:  # of a subclass the interpreter returns 1
            raise KeyboardInterrupt from None
        return code
    return None


def end_by_interrupt() -> NoReturn:
    """End this process by SIGINT, as the interpreter does after an uncaught Ctrl-C."""
    sys.excepthook = lambda *_: None
    raise KeyboardInterrupt from None


def _run_script(program: Program) -> None:
    path = program.target
    sys.argv[:] = [path, *program.arguments]
    if path == "-":
        _enter_path("")
        source = sys.stdin.buffer.read() if sys.stdin else b""
        _run_source(source, "<stdin>", _new_main(__file__="<stdin>", __cached__=None))
        return
    full = path if os.path.isabs(path) else os.path.join(os.getcwd(), path)
    if os.path.isdir(full) or _is_archive(full):
        _run_container(full)
        return
    _enter_path(os.path.dirname(os.path.realpath(path)))
    try:
        with open(full, "rb") as file:
            source = file.read()
    except OSError as error:
        name = f"{sys.executable}: can't open file {full!r}"
        print(f"{name}: [Errno {error.errno}] {error.strerror}", file=sys.stderr)
        raise SystemExit(2) from None
    compiled = full.endswith(_PYC)
    kind: Any = machinery.SourcelessFileLoader if compiled else machinery.SourceFileLoader
    loader = kind("__main__", full)
    main = _new_main(__file__=full, __cached__=None, __loader__=loader)
    if compiled:
        prepare(None)
        exec(loader.get_code("__main__"), main.__dict__)
    else:
        _run_source(source, full, main)


def _run_container(full: str) -> None:
    """A directory or a zip file with a ``__main__.py``."""
    sys.path.insert(0, full)
    prepare(_source_of("__main__"))
    _new_main()
    _run_as_main("__main__", alter_argv=False)


def _run_module(program: Program) -> None:
    sys.argv[:] = ["-m", *program.arguments]
    _enter_path(os.getcwd())
    prepare(_source_of(program.target))
    _new_main()
    _run_as_main(program.target)


def _run_code(program: Program) -> None:
    sys.argv[:] = ["-c", *program.arguments]
    _enter_path("")
    _run_source(program.target.encode("utf-8", "surrogateescape"), "<string>", _new_main())


_RUN = {SCRIPT: _run_script, MODULE: _run_module, CODE: _run_code}


def _run_source(source: bytes, name: str, main: ModuleType) -> None:
    prepare(source)
    code: CodeType = compile(source, name, "exec", dont_inherit=True)
    if name == "<string>" and sys.version_info >= (3, 13):
        _show_in_tracebacks(code, source.decode("utf-8", "replace"), name)
    exec(code, main.__dict__)


def _show_in_tracebacks(code: CodeType, text: str, name: str) -> None:
    """As Python does with ``-c`` since 3.13. The lines of the server's own are shown otherwise."""
    import linecache

    register: Any = getattr(linecache, "_register_code", None)
    if register is not None:  # it takes the code since there are lines of interactive code
        register(code if hasattr(linecache, "_interactive_cache") else name, text, name)


def _run_as_main(name: str, alter_argv: bool = True) -> None:
    import runpy

    runpy._run_module_as_main(name, alter_argv)  # type: ignore[attr-defined]  # as the interpreter


def _enter_path(entry: str) -> None:
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
        sys.path.insert(0, entry)


def _is_archive(path: str) -> bool:
    import zipimport

    try:
        zipimport.zipimporter(path)
    except (zipimport.ZipImportError, OSError):
        return False
    return True


def _new_main(**values: Any) -> ModuleType:
    """A ``__main__`` as the interpreter makes it; the old one stays until the process ends."""
    old = sys.modules["__main__"]
    main = ModuleType("__main__")
    names = main.__dict__
    names["__loader__"] = machinery.BuiltinImporter
    if "__annotations__" in old.__dict__:
        names["__annotations__"] = {}
    names["__builtins__"] = sys.modules["builtins"]
    names.update(values)
    sys.modules["__main__"] = main
    if "__mp_main__" in sys.modules:  # multiprocessing, which is preloaded, has the old one
        sys.modules["__mp_main__"] = main
    _replaced.append(old)
    return main


_replaced: list[ModuleType] = []


def _source_of(name: str) -> bytes | None:
    """The text of a module as ``-m`` would find it. Nothing is imported for it."""
    places: Any = None
    spec: Any = None
    for part in [*name.split("."), "__main__"]:
        if spec is not None and part == "__main__" and spec.submodule_search_locations is None:
            break
        spec = machinery.PathFinder.find_spec(part, places)
        if spec is None:
            return None
        places = spec.submodule_search_locations
    try:
        source: bytes = spec.loader.get_data(spec.origin)
    except (AttributeError, OSError, TypeError):
        return None
    return source


def _show(error: BaseException) -> Any:
    """Show an uncaught exception, as the interpreter does; returns the exit code."""
    trace = _without_own_frames(error.__traceback__)
    error.__traceback__ = trace
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    try:
        sys.excepthook(type(error), error, trace)
    except SystemExit as end:
        return end.code
    except BaseException as second:
        second.__traceback__ = _without_own_frames(second.__traceback__)
        second.__context__ = None
        print("Error in sys.excepthook:", file=sys.stderr)
        sys.__excepthook__(type(second), second, second.__traceback__)
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(type(error), error, trace)
    return 1


def _without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace

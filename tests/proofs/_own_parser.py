"""Parse commands by an engine's own argument parser, from its Python files alone: under the Python of an environment that has torch
and transformers, `python _own_parser.py ENGINE COMMANDS STUBS` with the tree on PYTHONPATH.

A package that is not there is replaced by an empty one, as parsing needs none; the exit code is 3 and its name the last line where
that is not said in STUBS yet. Each line of the answer is one command: the arguments that were set, as JSON.
"""

import argparse
import importlib
import importlib.abc
import importlib.machinery
import json
import sys
import types
from typing import Any
from unittest.mock import MagicMock

_MISSING = 3


class _Empty(types.ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []
        self.__version__ = "99.0"  # some ask how new it is

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names: list[str]) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] in self.names else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def _let_configs_be_registered_twice() -> None:
    """An older engine brings configs that this transformers has by now."""
    mapping = importlib.import_module("transformers.models.auto.configuration_auto")._LazyConfigMapping
    register = mapping.register
    mapping.register = lambda self, key, value, exist_ok=False: register(self, key, value, exist_ok=True)


def _first(modules: tuple[str, ...], name: str, package: str) -> Any:
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except ModuleNotFoundError as error:
            if not str(error.name).startswith(package):
                raise
        except AttributeError:
            continue
    raise ImportError(name)


def _parser(engine: str) -> Any:
    if engine == "sglang":
        parser = argparse.ArgumentParser()
        importlib.import_module("sglang.srt.server_args").ServerArgs.add_cli_args(parser)
        return parser
    places = tuple(f"vllm.entrypoints.{folder}.cli_args" for folder in ("openai", "launchers", "common"))
    make = _first(places, "make_arg_parser", "vllm")
    return make(_first(("vllm.utils.argparse_utils", "vllm.utils"), "FlexibleArgumentParser", "vllm")())


def main(engine: str, commands: str, stubs: str) -> int:
    sys.meta_path.append(_Finder(json.loads(stubs)))
    _let_configs_be_registered_twice()
    try:
        parser = _parser(engine)
    except ModuleNotFoundError as error:
        print(error.name)
        return _MISSING
    for command in json.loads(commands):
        print("READ", json.dumps(vars(parser.parse_args(command)), default=str))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

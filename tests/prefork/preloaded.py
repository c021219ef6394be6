"""Modules that are imported before a fork, and come into sight when the forked program imports them.

Whether "torch" is among `sys.modules` decides in hocket which libraries come up, so it must look as it would have.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from copy import copy
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class Preloaded(MetaPathFinder, Loader):
    """A package that is imported and put aside, with what belongs to it.

    Args:
        name: of the package.
        belonging: further top-level packages that only come with it.
        needs: what becomes visible before it does.
    """

    def __init__(self, name: str, belonging: Sequence[str] = (), needs: Preloaded | None = None) -> None:
        importlib.import_module(name)
        self._needs = needs
        tops = {name, *belonging}
        self._hidden = {each: module for each, module in sys.modules.items() if each.partition(".")[0] in tops}

    def hide(self) -> None:
        """Take the modules out of sight; all packages have to be imported by then."""
        for name in self._hidden:
            sys.modules.pop(name, None)
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Answer for a hidden module with its own spec, but for the loader."""
        if name not in self._hidden or self not in sys.meta_path:
            return None
        spec = copy(self._hidden[name].__spec__)
        assert spec is not None
        spec.loader = self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Bring all modules back as soon as one is imported; asking whether it is installed does not."""
        if self._needs is not None and self._needs in sys.meta_path:
            self._needs.show()
        self.show()
        module = self._hidden[spec.name]
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is left to be run."""
        module.__spec__ = self._spec

    def show(self) -> None:
        """Put the modules back."""
        sys.meta_path.remove(self)
        sys.modules.update(self._hidden)

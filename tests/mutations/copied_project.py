"""A copy of the project with an environment of its own, in which files may be changed."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .catalogue import ROOT, BadMutation, Mutation

_BUILD_DEADLINE_S = 1800.0
_LOOK_DEADLINE_S = 120.0
_ENVIRONMENT = ".venv"
# Compares what a fresh interpreter would run with what the file says; the answer may come out of a stale cache.
_IS_LOADED = """
import importlib.util, pathlib, sys
spec = importlib.util.find_spec(sys.argv[1])
source = pathlib.Path(sys.argv[2]).read_bytes()
print(spec.origin == sys.argv[2] and spec.loader.get_code(spec.name) == compile(source, spec.origin, "exec"))
"""


class CopiedProject:
    """The files of a checkout, uncommitted ones too, in a folder that stays there from run to run, so that the native
    core is built once and brought up to date after that. One process at a time uses it.

    Packages of the environment are hard links where that can be: a copy takes seconds and no room. Paths that the
    environment remembers are rewritten, so whatever is started in the copy finds the code of the copy.

    Args:
        root: of the checkout.
        tell: is given lines for the user.

    Raises:
        BlockingIOError: another process uses the copy.
    """

    def __init__(self, root: Path = ROOT, tell: Callable[[str], object] = print) -> None:
        name = hashlib.sha256(str(root).encode()).hexdigest()[:12]
        folder = Path(tempfile.gettempdir()) / f"hocket-mutations-{os.getuid()}-{name}"
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise PermissionError(f"{folder} belongs to another user")
        self._lock = (folder / "lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.root = folder / "project"
        self._origin, self._tell = root, tell
        self._build = folder / "native"
        self._unmutated_core = folder / "unmutated.so"
        self._has_core = False
        self._copy_files()
        self._copy_environment()
        if self._core.read_bytes() != (unmutated := _core_in(root)).read_bytes():
            self._install(unmutated)  # a run that was killed has left a bug

    @property
    def python(self) -> Path:
        """The interpreter of the copy."""
        return self.root / _ENVIRONMENT / "bin" / "python"

    @contextmanager
    def mutated(self, mutation: Mutation) -> Iterator[None]:
        """Have the bug in the copy; made sure that interpreters load it.

        Raises:
            BadMutation: it does not fit, or is not what an interpreter loads.
        """
        path = self.root / mutation.file
        text = path.read_text()
        changed = mutation.apply(text)
        if mutation.is_native:
            self._build_unmutated_core()
        try:
            self._write(path, changed)
            if mutation.is_native:
                self._install(self._built_core())
                if self._core.read_bytes() == self._unmutated_core.read_bytes():
                    raise BadMutation(f"{mutation.id}: the native core is the same with it")
            elif not self._is_loaded(mutation.module, path):
                raise BadMutation(f"{mutation.id}: a fresh interpreter does not load it")
            yield
        finally:
            self._write(path, text)
            if mutation.is_native:
                self._install(self._unmutated_core)

    @contextmanager
    def unmutated_for_a_while(self, mutation: Mutation) -> Iterator[None]:
        """Take the bug out, within `mutated`, and put it in again."""
        path = self.root / mutation.file
        text, core = path.read_text(), self._build / "mutated.so"
        if mutation.is_native:
            shutil.copy(self._core, core)
            self._install(self._unmutated_core)
        self._write(path, (self._origin / mutation.file).read_text())
        try:
            yield
        finally:
            self._write(path, text)
            if mutation.is_native:
                self._install(core)

    def _copy_files(self) -> None:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=self._origin, check=True, capture_output=True, text=True, timeout=_LOOK_DEADLINE_S,
        )  # fmt: skip
        names = {name for name in listed.stdout.split("\0") if name and (self._origin / name).is_file()}
        for name in names:
            source, target = self._origin / name, self.root / name
            if not target.exists() or target.read_bytes() != source.read_bytes():
                target.parent.mkdir(parents=True, exist_ok=True)
                self._write(target, source.read_bytes())
                target.chmod(source.stat().st_mode)
        for path in sorted(self.root.rglob("*")):
            name = str(path.relative_to(self.root))
            is_ours = not name.startswith((_ENVIRONMENT, "build", ".git/")) and "__pycache__" not in name
            if is_ours and path.is_file() and name not in names:
                path.unlink()
        for command in ("init --quiet", "add --all"):  # tests ask git which files there are
            self._run("git", *command.split(), deadline_s=_LOOK_DEADLINE_S)

    def _copy_environment(self) -> None:
        source, target = self._origin / _ENVIRONMENT, self.root / _ENVIRONMENT
        stamp = target / "copied"
        state = str(
            [(each.stat().st_mtime_ns, each.name) for each in sorted(source.glob("lib/python*/site-packages/*"))]
        )
        if stamp.exists() and stamp.read_text() == state:
            return
        self._tell(f"copying {source} to {target}")
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target, symlinks=True, copy_function=_link_or_copy)
        (packages,) = target.glob("lib/python*/site-packages")
        remembering = [*target.glob("bin/*"), *packages.glob("_editable_*"), *packages.glob("*.pth")]
        for path in [*remembering, *packages.glob("hocket-*/*.json"), target / "pyvenv.cfg"]:
            if path.is_file() and not path.is_symlink():
                content = path.read_bytes()
                if b"\0" not in content and os.fsencode(self._origin) in content:
                    mode = path.stat().st_mode
                    path.unlink()  # not through a hard link into the environment that it was copied from
                    path.write_bytes(content.replace(os.fsencode(self._origin), os.fsencode(self.root)))
                    path.chmod(mode)
        stamp.write_text(state)

    @property
    def _core(self) -> Path:
        """The native core as the copy's interpreters load it."""
        return _core_in(self.root)

    def _build_unmutated_core(self) -> None:
        if self._has_core:
            return
        self._tell("building the native core; only the first time takes minutes")
        built = self._built_core()
        if not self._unmutated_core.exists() or self._unmutated_core.read_bytes() != built.read_bytes():
            shutil.copy(built, self._unmutated_core)
        self._install(self._unmutated_core)
        self._run(str(self.python), "-c", "import hocket._native", deadline_s=_LOOK_DEADLINE_S)
        self._has_core = True

    def _built_core(self) -> Path:
        tools = self.python.parent
        options = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}", f"-DPython_EXECUTABLE={self.python}"]
        self._run(
            str(tools / "cmake"), "-S", str(self.root), "-B", str(self._build), *options, deadline_s=_BUILD_DEADLINE_S
        )
        self._run(
            str(tools / "cmake"), "--build", str(self._build), "--target", "_native", deadline_s=_BUILD_DEADLINE_S
        )
        (built,) = self._build.glob("_native.*.so")
        return built

    def _install(self, core: Path) -> None:
        target = self._core
        part = target.with_suffix(".part")
        shutil.copy(core, part)
        part.replace(target)  # whoever has the old one loaded keeps it

    def _is_loaded(self, module: str, path: Path) -> bool:
        return self._run(str(self.python), "-c", _IS_LOADED, module, str(path), deadline_s=_LOOK_DEADLINE_S) == "True"

    def _run(self, *command: str, deadline_s: float) -> str:
        done = subprocess.run(
            command, cwd=self.root, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=deadline_s
        )
        if done.returncode:
            raise BadMutation(
                f"{' '.join(command)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}"
            )
        return done.stdout.strip()

    @staticmethod
    def _write(path: Path, content: str | bytes) -> None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        if path.suffix == ".py":  # the cache goes by size and seconds, which may be the same with the bug
            Path(importlib.util.cache_from_source(path)).unlink(missing_ok=True)


def _core_in(root: Path) -> Path:
    (found,) = root.glob(f"{_ENVIRONMENT}/lib/python*/site-packages/hocket/_native.*.so")
    return found


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)

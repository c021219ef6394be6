"""The secret of a job: where it is found, how concurrent processes create it, and what is refused."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hocket.boot import secret
from hocket.boot.secret import Secret, find_secret, secret_path
from hocket.errors import BootstrapMismatch

from ..naming import raises

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HOCKET_SECRET", "HOCKET_INSECURE", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_the_first_one_makes_it_for_the_user_alone(home: Path) -> None:
    made = find_secret()
    path = home / ".config" / "hocket" / "secret"
    assert secret_path() == path and made.origin == str(path)
    assert made.key == path.read_bytes() and len(made.key) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert os.listdir(path.parent) == ["secret"]
    assert find_secret() == made


def test_it_lies_where_the_user_keeps_configuration(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "elsewhere"))
    find_secret()
    assert (home / "elsewhere" / "hocket" / "secret").exists()
    assert not (home / ".config").exists()


_RACE = "import sys; from hocket.boot.secret import find_secret; sys.stdin.read(); print(find_secret().key.hex())"


@pytest.mark.parametrize("links", [True, False])
def test_all_who_begin_at_once_have_the_same(home: Path, links: bool) -> None:
    without_links = "import os\ndef refuse(*a): raise PermissionError(1, 'no links here')\nos.link = refuse\n"
    program = ("" if links else without_links) + _RACE
    started = [
        subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    for each in started:
        assert each.stdin is not None
        each.stdin.close()
        each.stdin = None
    keys = {each.communicate(timeout=50)[0] for each in started}
    assert len(keys) == 1 and len(keys.pop()) == 65


def test_key_id_and_repr_tell_nothing_about_it(home: Path) -> None:
    made = find_secret()
    assert made.key.hex() not in repr(made) and repr(made.key) not in repr(made)
    assert made.key_id(b"j") != made.key[:16] and len(made.key_id(b"j")) == 16
    assert Secret(made.key, "").key_id(b"j") == made.key_id(b"j") != made.key_id(b"i")
    assert made.derive(b"a", b"bc") != made.derive(b"a", b"b", b"c") != made.derive(b"a", b"bc", b"")


@pytest.mark.parametrize(("text", "works"), [("a" * 16, True), ("a" * 4096, True), ("a" * 15, False), ("", False)])
def test_the_variable_comes_first(home: Path, monkeypatch: pytest.MonkeyPatch, text: str, works: bool) -> None:
    monkeypatch.setenv("HOCKET_SECRET", text)
    if works:
        assert find_secret().origin == "HOCKET_SECRET"
        assert not (home / ".config").exists()
    else:
        with raises(BootstrapMismatch, names=("HOCKET_SECRET", "16", "4096", str(len(text)))):
            find_secret()


def test_without_any_it_says_so_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_INSECURE", "1")
    with pytest.warns(UserWarning, match="HOCKET_INSECURE=1"):
        first = find_secret()
    assert first.origin == "HOCKET_INSECURE=1"
    assert not (home / ".config").exists()


def test_contradictions_are_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_INSECURE", "yes")
    with raises(BootstrapMismatch, names=("HOCKET_INSECURE", "0", "1", "'yes'")):
        find_secret()
    monkeypatch.setenv("HOCKET_INSECURE", "1")
    monkeypatch.setenv("HOCKET_SECRET", "a" * 20)
    with raises(BootstrapMismatch, names=("HOCKET_INSECURE=1", "HOCKET_SECRET")):
        find_secret()


def _may_be_read_by_others(path: Path) -> None:
    path.write_bytes(b"k" * 32)
    path.chmod(0o640)


def _too_short(path: Path) -> None:
    path.write_bytes(b"k" * 31)
    path.chmod(0o600)


def _too_long(path: Path) -> None:
    path.write_bytes(b"k" * 5000)
    path.chmod(0o600)


def _link(path: Path) -> None:
    target = path.with_name("target")
    target.write_bytes(b"k" * 32)
    target.chmod(0o600)
    path.symlink_to(target)


def _link_to_nothing(path: Path) -> None:
    path.symlink_to(path.with_name("nothing"))


def _pipe(path: Path) -> None:
    os.mkfifo(path, 0o600)


def _folder(path: Path) -> None:
    path.mkdir(mode=0o700)


@pytest.mark.parametrize(
    "make", [_may_be_read_by_others, _too_short, _too_long, _link, _link_to_nothing, _pipe, _folder]
)
def test_files_that_cannot_be_it(home: Path, make: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret, "_WRITING_S", 0.05)
    path = secret_path()
    path.parent.mkdir(parents=True)
    make(path)
    before = os.listdir(path.parent)
    with raises(BootstrapMismatch, names=(str(path),)):
        find_secret()
    assert os.listdir(path.parent) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file to another user")
def test_file_of_another_user(home: Path) -> None:
    find_secret()
    os.chown(secret_path(), 65534, 65534)
    with raises(BootstrapMismatch, names=(str(secret_path()), "65534", str(os.geteuid()))):
        find_secret()


def test_nowhere_to_keep_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / ".config").write_text("a file")
    with raises(BootstrapMismatch, names=("HOCKET_SECRET", "HOCKET_INSECURE=1", str(home / ".config" / "hocket"))):
        find_secret()

"""hocket's environment variables: the page lists all known ones, and misspelt ones give a warning."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

import hocket as hk
from hocket.session.variables import KNOWN, VALUES, check_variables

from ..naming import assert_names, raises

pytestmark = pytest.mark.timeout(60)
ROOT = Path(__file__).parents[2]


def test_the_page_lists_what_is_known() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    table = page[page.index("## Variables of hocket") : page.index("## Variables of others")]
    listed: set[str] = set()
    for line in table.splitlines():
        if line.startswith("| `"):
            listed |= set(re.findall(r"`(HOCKET_[A-Z_]+)`", line.split("|")[1]))
    assert listed == set(KNOWN)


def test_what_is_read_is_known() -> None:
    read = set()
    for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "native").rglob("*.cpp")]:
        read |= set(re.findall(r"""(?:environ(?:\.get)?[\[(]|getenv\()["'](HOCKET_[A-Z_]+)["']""", path.read_text()))
    assert read and read <= set(KNOWN)


@pytest.mark.parametrize("name", VALUES)
def test_wrong_values(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", *VALUES[name]):
        check_variables({name: value})
    monkeypatch.setenv(name, "maybe")
    with raises(hk.InvalidArgument, names=(name, *VALUES[name], "'maybe'")):
        hk.init(backends="shm")


def test_a_misspelt_one() -> None:
    with pytest.warns(UserWarning, match="HOCKET_BACKEND") as told:
        check_variables({"HOCKET_BACKEND": "gloo", "HOCKET_TEST_TIER": "quick", "HOCKET_LOG": "info"})
    (warning,) = told
    assert_names(str(warning.message), "HOCKET_BACKEND", "'HOCKET_BACKENDS'")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_variables({"HOCKET_BACKEND": "gloo"}, warns=False)

"""Run the test suite of dask.distributed over hocket's protocol, and over its own TCP under another name.

Usage: python tools/dask_suite.py [--part I/N] [--only TEXT ...] [--again]

A test counts against hocket if it fails over hocket and passes over TCP. The suite is that of the installed version;
its source is a clone of GitHub's repository, or DISTRIBUTED_SOURCE: a folder of it, or a git repository that has the
tag. Results are kept in build/dask_suite, a file for each file of tests, so a run that was ended goes on; --again
forgets them. What fails over hocket only is run again by itself before it counts, over both.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "dask_suite"
REPOSITORY = "https://github.com/dask/distributed"
SCHEMES = ("alias", "hocket")
TIMEOUT_S = 3600
ALIAS = """
from distributed.comm.tcp import TCPBackend, TCPConnector, TCPListener


class AliasConnector(TCPConnector):
    prefix = "alias://"


class AliasListener(TCPListener):
    prefix = "alias://"


class AliasBackend(TCPBackend):
    _connector_class = AliasConnector
    _listener_class = AliasListener
"""


# Helpers of the suite that know TCP only, also what its memory is: file, text, and text that takes any connection.
CHANGES = (
    ("distributed/utils_test.py", "class LockedComm(TCP):", "class LockedComm(Comm):"),
    (
        "distributed/utils_test.py",
        "        assert isinstance(comm, TCP)\n",
        """
    local_address = property(lambda self: self.comm.local_address)
    peer_address = property(lambda self: self.comm.peer_address)

    def abort(self):
        self.comm.abort()

    def closed(self):
        return self.comm.closed()
""",
    ),
    (
        "distributed/protocol/utils_test.py",
        'raise TypeError(f"Unexpected numpy buffer: {o!r}")',
        "return o  # whatever has the memory",
    ),
)


def source_tree(tag: str) -> Path:
    """Return a folder with the source of a version of distributed; a few helpers of its suite are changed."""
    tree = found_tree(tag)
    for file, before, after in CHANGES:
        text = (tree / file).read_text()
        if after in text:
            continue
        if before not in text:
            sys.exit(f"{file} of distributed {tag} has no {before!r}: see whether it takes any connection")
        (tree / file).write_text(text.replace(before, after))
    return tree


def found_tree(tag: str) -> Path:
    """Return a folder with the source of a version of distributed, as it is."""
    given = os.environ.get("DISTRIBUTED_SOURCE", "")
    if given and (Path(given) / "distributed" / "comm" / "tests").is_dir():
        return Path(given)
    tree = BUILD / f"distributed-{tag}"
    if not (tree / "distributed").is_dir():
        tree.mkdir(parents=True, exist_ok=True)
        repository = Path(given) if given else BUILD / "repository"
        if not given and not repository.is_dir():
            subprocess.run(
                ["git", "clone", "--quiet", "--bare", "--depth", "1", "--branch", tag, REPOSITORY, repository],
                check=True,
            )
        archive = subprocess.run(["git", "-C", repository, "archive", tag], check=True, stdout=subprocess.PIPE)
        subprocess.run(["tar", "x", "-C", tree], check=True, input=archive.stdout)
    return tree


def site_folder() -> Path:
    """Return a folder with what the suite needs beside hocket: TCP under another name, and a plug-in of pytest."""
    folder = BUILD / "site"
    info = folder / "aliastcp-1.dist-info"
    if not info.is_dir():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        subprocess.run([*pip, "pytest-rerunfailures==16.7"], check=True)
        (folder / "aliastcp.py").write_text(ALIAS)
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: aliastcp\nVersion: 1\n")
        (info / "entry_points.txt").write_text("[distributed.comm.backends]\nalias = aliastcp:AliasBackend\n")
    return folder


def outcomes(tree: Path, scheme: str, file: str, test: str, label: str) -> dict[str, str]:
    """Run a file of tests, or one of them, over a scheme; return "passed", "failed" or "skipped" by name."""
    report = BUILD / f"{label}.xml"
    report.unlink(missing_ok=True)
    variables = {"DASK_DISTRIBUTED__COMM__DEFAULT_SCHEME": scheme, "PYTHONPATH": str(site_folder())}
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--color=no", "--timeout=120"]
    with (BUILD / f"{label}.log").open("w") as log:
        try:
            subprocess.run(
                [*pytest, f"--junitxml={report}", test or file], cwd=tree, env={**os.environ, **variables},
                stdout=log, stderr=subprocess.STDOUT, timeout=TIMEOUT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {file: "failed"}
    if not report.exists():
        return {file: "failed"}
    found, module = {}, file.removesuffix(".py").replace("/", ".")
    for case in ElementTree.parse(report).iter("testcase"):
        bad = case.find("failure") is not None or case.find("error") is not None
        classes = case.get("classname", "").removeprefix(module).strip(".").replace(".", "::")
        name = "::".join(filter(None, (file, classes, case.get("name"))))
        found[name] = "failed" if bad else "skipped" if case.find("skipped") is not None else "passed"
    return found


def result_of(tree: Path, file: str, *, again: bool) -> dict[str, dict]:
    """Return the outcomes and seconds of a file of tests over both schemes, kept from before if there are any."""
    label = file.replace("/", "-").removesuffix(".py")
    kept = BUILD / f"{label}.json"
    if kept.exists() and not again:
        return json.loads(kept.read_text())
    found: dict[str, dict] = {}
    for scheme in SCHEMES:
        begin_s = time.monotonic()
        tests = outcomes(tree, scheme, file, "", f"{label}-{scheme}")
        found[scheme] = {"tests": tests, "seconds": time.monotonic() - begin_s}
    for name in worse(found):
        for scheme in SCHEMES:  # by itself; some tests fail now and then, over TCP as well
            alone = outcomes(tree, scheme, file, name, f"{label}-{scheme}-again")
            found[scheme]["tests"][name] = alone.get(name, "failed")
    kept.write_text(json.dumps(found))
    return found


def worse(found: dict[str, dict]) -> list[str]:
    """Return the tests that fail over hocket and pass over TCP."""
    theirs, ours = (found[scheme]["tests"] for scheme in SCHEMES)
    return [name for name, outcome in ours.items() if outcome == "failed" and theirs.get(name, "passed") == "passed"]


def main() -> int:
    """Run the files of a part, and tell what is worse over hocket."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--part", default="1/1", help="only the I-th of N parts of the files, as I/N")
    parser.add_argument("--only", action="append", help="only files whose name has this text; may be repeated")
    parser.add_argument("--again", action="store_true", help="forget the results that are kept")
    options = parser.parse_args()
    part, num_parts = map(int, options.part.split("/"))
    if not 1 <= part <= num_parts:
        parser.error(f"--part must be from 1/{num_parts} to {num_parts}/{num_parts}, not {options.part}")
    BUILD.mkdir(parents=True, exist_ok=True)
    tree = source_tree(version("distributed"))
    files = sorted(str(each.relative_to(tree)) for each in (tree / "distributed").rglob("tests/test_*.py"))
    chosen = [each for each in files if not options.only or any(text in each for text in options.only)]
    bad: list[str] = []
    seconds = dict.fromkeys(SCHEMES, 0.0)
    for number, file in enumerate(chosen[part - 1 :: num_parts], 1):
        found = result_of(tree, file, again=options.again)
        counts = {scheme: list(found[scheme]["tests"].values()) for scheme in SCHEMES}
        for scheme in SCHEMES:
            seconds[scheme] += found[scheme]["seconds"]
        bad += worse(found)
        print(
            f"{number:3d} {file}: "
            + "; ".join(
                f"{scheme} {each.count('passed')} passed, {each.count('failed')} failed, "
                f"{found[scheme]['seconds']:.0f} s"
                for scheme, each in counts.items()
            ),
            flush=True,
        )
    print(f"together: {', '.join(f'{scheme} {each:.0f} s' for scheme, each in seconds.items())}")
    print("\n".join(["worse over hocket:", *bad]) if bad else "nothing is worse over hocket")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

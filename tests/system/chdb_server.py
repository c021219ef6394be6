"""ClickHouse's HTTP interface in front of chDB, as far as `clickhouse_connect` uses it: a server for tests.

python chdb_server.py FOLDER PORT

The database in the folder is a whole ClickHouse but for its network. The password is that of the environment variable
CHDB_PASSWORD.
"""

from __future__ import annotations

import base64
import os
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import chdb

DROPPED = "drop-answers"
_NOT_SETTINGS = {
    "query", "database", "query_id", "session_id", "wait_end_of_query", "client_protocol_version", "role",
    "send_progress_in_http_headers", "http_headers_progress_interval_ms", "enable_http_compression", "compress",
    "decompress", "session_timeout", "session_check", "quota_key", "buffer_size",
}  # fmt: skip


class Database:
    """One statement at a time."""

    def __init__(self, folder: Path) -> None:
        self._connection = chdb.connect(str(folder / "database"))
        self.folder = folder
        self._lock = Lock()
        self._set: dict[str, str] = {}
        self._database = "default"

    def run(self, parameters: dict[str, str], body: bytes) -> tuple[bytes, str]:
        sql, data = parameters.get("query", ""), body
        if not sql and (head := re.match(rb"INSERT INTO [^\n]* FORMAT \w+\n", body)):
            sql, data = head[0].decode(), body[head.end() :]
        elif not sql:
            sql, data = body.decode(), b""
        values = {name[6:]: value for name, value in parameters.items() if name.startswith("param_")}
        settings = {
            name: value for name, value in parameters.items() if name not in _NOT_SETTINGS and "param_" not in name
        }
        found = re.fullmatch(r"(.*?)\s+FORMAT\s+(\w+)\s*", sql, re.DOTALL)
        statement, form = (found[1], found[2]) if found else (sql, "TabSeparated")
        with self._lock:
            if (database := parameters.get("database", "default")) != self._database:
                self._ask(f"USE `{database}`")
                self._database = database
            if (readonly := settings.pop("readonly", None)) and not data:
                statement += f" SETTINGS readonly = {int(readonly)}"
            for name in self._set.keys() - settings.keys():
                self._ask(f"SET {name} = DEFAULT")
            for name, value in settings.items():
                if self._set.get(name) != value:
                    self._ask("SET " + name + " = '" + value.replace("'", "\\'") + "'")
            self._set = settings
            if not data:
                return self._ask(statement, form, values), form
            file = self.folder / "inserted"
            file.write_bytes(data)
            self._ask(f"{statement} FROM INFILE '{file}' FORMAT {form}")
            return b"", form

    def _ask(self, sql: str, form: str = "TabSeparated", values: dict[str, str] | None = None) -> bytes:
        return bytes(self._connection.query(sql, form, params=values or {}).bytes())


class Handler(BaseHTTPRequestHandler):
    """Answers as ClickHouse does."""

    protocol_version = "HTTP/1.1"
    database: Database

    def do_POST(self) -> None:
        parameters = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        given = base64.b64decode(self.headers.get("authorization", "").removeprefix("Basic ")).decode()
        if given.partition(":")[2] != os.environ.get("CHDB_PASSWORD", ""):
            self._answer(403, b"Code: 516. DB::Exception: Authentication failed. (AUTHENTICATION_FAILED)", "516")
            return
        try:
            content, form = self.database.run(parameters, body)
        except Exception as error:
            code = re.search(r"Code: (\d+)", str(error))
            self._answer(500, str(error).encode(), code[1] if code else "1001")
        else:
            if self._is_dropped(parameters):
                self.close_connection = True
            else:
                self._answer(200, content, "", form)

    do_GET = do_POST

    def _is_dropped(self, parameters: dict[str, str]) -> bool:
        """Whether this is an insert whose answer is to be lost: as many as the file says."""
        file = self.database.folder / DROPPED
        if "insert_deduplication_token" not in parameters or not file.exists() or not (rest := int(file.read_text())):
            return False
        file.write_text(str(rest - 1))
        return True

    def _answer(self, status: int, content: bytes, code: str, form: str = "TabSeparated") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-ClickHouse-Format", form)
        if code:
            self.send_header("X-ClickHouse-Exception-Code", code)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    Handler.database = Database(folder)
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()

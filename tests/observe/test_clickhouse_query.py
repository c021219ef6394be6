"""What ClickHouse is asked for a stranger: queries over the tables of a run, and addresses that hide a password."""

from __future__ import annotations

from pathlib import Path

import pytest

from hocket.errors import InvalidArgument, MissingPackage
from hocket.observe.store.clickhouse.address import ClickHouseAddress, is_clickhouse, parse_address
from hocket.observe.store.opening import open_store

from ..naming import assert_names, raises

pytest.importorskip("sqlglot")
pytestmark = pytest.mark.timeout(60)
_REFUSED = r"""
SELECT * FROM url('http://x') ¦ url
SELECT * FROM s3('http://x') ¦ s3
SELECT * FROM remote('other', system.one) ¦ remote
SELECT * FROM (SELECT * FROM remote('other', system.one)) ¦ remote
SELECT * FROM clusterAllReplicas('x', system.one) ¦ clusterAllReplicas
SELECT * FROM numbers(10) ¦ numbers
SELECT * FROM merge(currentDatabase(), '.*') ¦ merge
SELECT * FROM view(SELECT 1) ¦ view
SELECT * FROM executable('x', 'TSV', 'a Int') ¦ executable
SELECT * FROM dictionary('x') ¦ dictionary
SELECT * FROM values('a Int', 1) ¦ Values
SELECT * FROM 'file' ¦ file
SELECT * FROM other.operations ¦ other.operations
SELECT * FROM system.tables ¦ system.tables
SELECT * FROM runs ¦ runs
SELECT * FROM operations, runs ¦ runs
SELECT * FROM operations /* , io */ , runs ¦ runs
SELECT * FROM operations JOIN senders USING (rank) ¦ senders
SELECT op FROM operations UNION ALL SELECT text FROM runs ¦ runs
SELECT op FROM operations WHERE EXISTS (SELECT 1 FROM runs) ¦ runs
SELECT (SELECT any(text) FROM runs) ¦ runs
SELECT op FROM operations ORDER BY (SELECT any(text) FROM runs) ¦ runs
SELECT op FROM operations WHERE op IN (SELECT text FROM runs) ¦ runs
SELECT op FROM operations WHERE op IN system.users ¦ system.users
SELECT op FROM operations WHERE op IN senders ¦ senders
SELECT op FROM operations WHERE op IN (senders) ¦ senders
SELECT op FROM operations WHERE op NOT IN senders ¦ senders
SELECT op FROM operations WHERE op GLOBAL IN senders ¦ senders
SELECT (1, 2) IN (runs, io) ¦ runs
SELECT arrayMap(x -> (x IN runs), [1]) ¦ runs
SELECT notIn(op, senders) FROM io ¦ senders
SELECT in(op, senders) FROM io ¦ Aliases
WITH runs AS (SELECT 1) SELECT * FROM runs ¦ runs
WITH operations AS (SELECT 1) SELECT * FROM operations ¦ operations
WITH x AS (SELECT * FROM y), y AS (SELECT 1) SELECT * FROM x ¦ y
WITH x AS (SELECT * FROM x) SELECT * FROM x ¦ x
SELECT * FROM (WITH x AS (SELECT 1) SELECT * FROM x), x ¦ x
WITH RECURSIVE x AS (SELECT 1 UNION ALL SELECT * FROM x) SELECT * FROM x ¦ RECURSIVE
WITH 1 AS x SELECT x ¦ 1
SELECT file('/etc/passwd') ¦ file
SELECT `file`('/etc/passwd') ¦ file
SELECT "file"('/etc/passwd') ¦ file
SELECT FILE('/etc/passwd') ¦ FILE
SELECT file/**/('/etc/passwd') ¦ file
SELECT arrayMap(file, ['/etc/passwd']) ¦ arrayMap
SELECT arrayMap("file", ['/etc/passwd']) FROM io ¦ arrayMap
SELECT arrayMap(toString, [1]) ¦ 'toString'
SELECT arrayMax(file AS f, ['x.csv']) FROM io ¦ arrayMax
SELECT arraySort(joinGet AS f, ['x']), (SELECT 1 AS joinGet) FROM io ¦ arraySort
SELECT arrayCount(file || '', ['x']) FROM io ¦ arrayCount
SELECT arrayFilter(x -> file(x) = '', ['/etc/passwd']) ¦ file
SELECT * REPLACE (file('x') AS op) FROM io ¦ file
SELECT * APPLY(file) FROM io ¦ APPLY
SELECT dictGet('a', 'b', 1) ¦ dictGet
SELECT joinGet('other.t', 'b', 1) ¦ joinGet
SELECT hasColumnInTable('host', 'user', 'password', 'd', 't', 'c') ¦ hasColumnInTable
SELECT sleep(3) ¦ sleep
SELECT getSetting('x') ¦ getSetting
SELECT currentUser() ¦ currentUser
SELECT CURRENT_USER ¦ CURRENT_USER
SELECT CURRENT_DATABASE ¦ 'CURRENT_DATABASE'
SELECT hostName() ¦ hostName
SELECT version() ¦ VERSION
SELECT evalMLMethod(1) ¦ evalMLMethod
SELECT initializeAggregation('sum', 1) ¦ initializeAggregation
SELECT CAST(1 AS AggregateFunction(sum, Int8)) ¦ AggregateFunction
SELECT {x:Identifier} ¦ Placeholder
SELECT @@version ¦ Parameter
SELECT ? ¦ Placeholder
SELECT 1 SETTINGS readonly = 0 ¦ SETTINGS
SELECT 1 FORMAT JSON ¦ FORMAT
SELECT 1 INTO OUTFILE 'x' ¦ OUTFILE
SELECT * FROM operations FINAL ¦ operations
SELECT * FROM operations SAMPLE 0.1 ¦ operations
SELECT * FROM operations PREWHERE 1 ¦ PREWHERE
SELECT COLUMNS('a') FROM io ¦ COLUMNS
SELECT "a\\"b" FROM io ¦ SELECT
SELECT 1; SELECT 2 ¦ SELECT
DROP TABLE io ¦ DROP
DELETE FROM io WHERE 1 ¦ DELETE
INSERT INTO io SELECT * FROM io ¦ INSERT
SET readonly = 0 ¦ SET
SHOW TABLES ¦ SHOW
EXPLAIN SELECT 1 ¦ SELECT
DESCRIBE TABLE operations ¦ DESCRIBE
 ¦ SELECT
""".strip("\n").split("\n")
_TAKEN = r"""
SELECT op, sum(nbytes), count(*) AS n, quantile(0.5)(seconds), sumIf(nbytes, rank = 0) FROM operations GROUP BY ALL
SELECT count(DISTINCT op), avg(seconds) FILTER (WHERE rank = 1), median(seconds), argMax(op, seconds) FROM operations
WITH a AS (SELECT op, seconds FROM operations), b AS (SELECT * FROM a) SELECT * FROM b UNION ALL SELECT * FROM a
SELECT a.rank FROM operations AS a ASOF JOIN io AS b ON a.rank = b.rank AND a.began_s >= b.began_s
SELECT op, row_number() OVER (PARTITION BY rank ORDER BY began_s DESC) AS r FROM operations WHERE rank NOT IN (1, -1)
SELECT floor(began_s) AS t, max(seconds) FROM io WHERE file LIKE '%\_x' GROUP BY t HAVING count() > 1 ORDER BY t LIMIT 5
SELECT arrayMap(y -> y + 1, groupArray(rank)), arraySum(groupArray(seconds)) FROM io
SELECT toString(rank), rank::String, if(rank > 1, 1, 2), CASE WHEN rank = 1 THEN 'x' ELSE 'it''s' END FROM io
SELECT * EXCEPT (rank) FROM (SELECT * FROM operations) AS x WHERE op != 'a\'b' AND NOT isNaN(seconds)
SELECT DISTINCT op FROM operations WHERE rank IN (SELECT rank FROM io) ORDER BY op
""".strip("\n").split("\n")


@pytest.mark.parametrize("case", _REFUSED)
def test_queries_that_are_refused(case: str) -> None:
    from hocket.observe.store.clickhouse.user_query import checked_query

    sql, _, name = case.partition(" ¦ ")
    with pytest.raises(InvalidArgument) as caught:
        checked_query(sql)
    assert_names(str(caught.value), name)


@pytest.mark.parametrize("sql", _TAKEN)
def test_queries_that_are_asked(sql: str) -> None:
    from hocket.observe.store.clickhouse.user_query import checked_query

    written, tables = checked_query(sql)
    assert tables <= {"operations", "io"} and tables
    assert checked_query(written) == (written, tables)


@pytest.mark.parametrize("text", ["(" * 5000 + "1" + ")" * 5000, "1" + " + 1" * 30_000, "'" + "x" * 90_000])
def test_long_queries_end(text: str) -> None:
    from hocket.observe.store.clickhouse.user_query import checked_query

    with pytest.raises(InvalidArgument) as caught:
        checked_query(f"SELECT {text} FROM runs")
    assert len(str(caught.value)) < 1000


def test_an_address_says_where_and_who(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    found = parse_address("clickhouse://a%40b:p%2Fw-of-a@db.example:9123/runs")
    assert found == ClickHouseAddress("db.example", 9123, "a@b", "p/w-of-a", "runs", False)
    assert "p/w-of-a" not in f"{found!r} {found.shown} {found.folder}"
    assert found.folder == tmp_path / "hocket" / "stores" / "db.example-9123-runs"
    monkeypatch.setenv("HOCKET_CLICKHOUSE_PASSWORD", "other")
    plain = parse_address("clickhouses://[::1]/runs")
    assert plain == ClickHouseAddress("::1", 8443, "default", "other", "runs", True)
    assert parse_address(plain.shown) == plain
    assert not any(map(is_clickhouse, ("runs", "./clickhouse", "/clickhouse:", "click")))


@pytest.mark.parametrize(
    "text",
    ["clickhouse:", "clickhouse://", "clickhouse://h", "clickhouse://h/", "clickhouse://h/a/b", "clickhouse://h/a-b",
     "clickhouse://h/a?b=c", "clickhouse://h/a#b", "clickhouse://h:99999/a", "clickhouse://h:x/a", "clickhouse://[/a",
     "clickhouse://h h/a", "clickhouse://h/a`b", "clickhouses:///a", "clickhouse://:secret@/a"],
)  # fmt: skip
def test_addresses_that_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        open_store(text)
    assert_names(str(caught.value), "clickhouse://USER@HOST:8123/DATABASE")
    assert "secret" not in str(caught.value)


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "clickhouse_connect", None)
    with raises(MissingPackage, names="hocket[clickhouse,store]"):
        open_store("clickhouse://127.0.0.1:9/none")

"""SQL only reads, and reads only tables."""

import duckdb
import pytest

from answers import write
from rolltrace.errors import InputError
from rolltrace.query.compact import compact
from rolltrace.query.duckdb_engine import EngineLimits, SqlSandbox, TableSnapshot
from rolltrace.query.run import open_run
from rolltrace.query.sql_check import check_statement
from rolltrace.store.create import create_run
from rolltrace.store.parts import find_parts
from rolltrace.store.sessions import Sessions

pytestmark = pytest.mark.core


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of one rollout."""
    path = tmp_path_factory.mktemp("asked") / "run"
    with create_run(path) as writer:
        write(writer)
    with open_run(path) as opened:
        yield opened


OTHER_STATEMENTS = [
    "insert into rollouts select * from rollouts",
    "update rollouts set reward = 1",
    "delete from rollouts",
    "create table t (a int)",
    "create view v as select 1",
    "create macro m(a) as a",
    "drop view rollouts",
    "alter view rollouts rename to r",
    "copy rollouts to '/tmp/x.csv'",
    "copy (select 1) to '/tmp/x.csv'",
    "attach '/tmp/x.db'",
    "detach memory",
    "pragma database_list",
    "pragma enable_profiling",
    "set threads = 1",
    "set enable_external_access = true",
    "reset threads",
    "call duckdb_settings()",
    "export database '/tmp/x'",
    "import database '/tmp/x'",
    "install httpfs",
    "load httpfs",
    "use memory",
    "vacuum",
    "checkpoint",
    "force checkpoint",
    "begin",
    "commit",
    "rollback",
    "prepare p as select 1",
    "execute p",
    "deallocate p",
    "truncate rollouts",
    "create secret (type s3)",
    "set variable a = 1",
    "comment on view rollouts is 'x'",
    "analyze",
    "pivot rollouts on env using count(*)",
    "describe rollouts",
    "show tables",
    "summarize rollouts",
    "show all tables",
    "explain analyze select 1",
    "explain (analyze) select 1",
    "explain (format json) select 1",
    "explain copy (select 1) to '/tmp/x.csv'",
    "explain delete from rollouts",
    "explain explain select 1",
    "merge into rollouts using rollouts r on true when matched then delete",
    "with gone as (delete from rollouts returning *) select * from gone",
    "with more as (insert into rollouts select * from rollouts returning *) select * from more",
    "select * from (delete from rollouts returning *)",
]


@pytest.mark.parametrize("sql", OTHER_STATEMENTS)
def test_only_select_is_run(run, sql):
    """Any statement but a SELECT, or a plain EXPLAIN of one, is refused."""
    with pytest.raises(InputError):
        run.sql(sql)


@pytest.mark.parametrize(
    "sql", ["select 1; select 2", "select 1; drop view rollouts", "", ";", "-- nothing", "select 1;;select 2"]
)
def test_exactly_one_statement(run, sql):
    """Several statements, and none, are refused."""
    with pytest.raises(InputError, match=r"exactly one|syntax|SELECT"):
        run.sql(sql)


OUTSIDE = [
    "select * from '{secret}'",
    'select * from "{secret}"',
    "from '{secret}'",
    "select * from read_csv('{secret}')",
    "select * from read_text('{secret}')",
    "select * from read_blob('{secret}')",
    "select * from read_json('{secret}')",
    "select * from read_parquet('{secret}')",
    "select * from parquet_scan('{secret}')",
    "select * from glob('{folder}/*')",
    "select * from sniff_csv('{secret}')",
    "select * from read_csv_auto('{secret}')",
    "select * from READ_TEXT('{secret}')",
    "select * from \"read_text\"('{secret}')",
    "select * from main.read_text('{secret}')",
    "select * from system.main.read_text('{secret}')",
    "select * from read_duckdb('{secret}')",
    "select * from query('select * from read_text(''{secret}'')')",
    "select * from query_table('{secret}')",
    "select * from json_execute_serialized_sql(json_serialize_sql('select 1'))",
    "select (select content from read_text('{secret}'))",
    "select * from rollouts where exists (from read_text('{secret}'))",
    "with a as (from read_text('{secret}')) select * from a",
    "select * from rollouts, lateral read_text('{secret}')",
    "select 1 union all select content from read_text('{secret}')",
    "values ((select content from read_text('{secret}')))",
    'with "{secret}" as (select 1) select * from (select * from "{secret}")',
    "with recursive r as (from read_text('{secret}') union all from r) select * from r",
    "select [x for x in (select list(content) from read_text('{secret}'))]",
    "select list_transform([1], lambda x: (select content from read_text('{secret}')))",
    "select * from rollouts order by (select content from read_text('{secret}'))",
    "select count(*) over (order by (select content from read_text('{secret}'))) from rollouts",
    "select * from rollouts limit (select size from read_text('{secret}'))",
    "explain select * from read_text('{secret}')",
    "select * from (pivot '{secret}' on column0)",
    "from read_text('{secret}') pivot (count(*) for filename in ('a'))",
    "select columns(*) from read_text('{secret}')",
    "select * from 'https://example.com/x.csv'",
    "select * from read_csv('s3://bucket/x')",
    "select * from duckdb_settings()",
    "select * from duckdb_secrets()",
    "select * from duckdb_views()",
    "select * from information_schema.tables",
    "select * from pg_catalog.pg_tables",
    "select * from pg_class",
    "select * from sqlite_master",
    "select * from main.rollouts",
    "select * from memory.main.rollouts",
    "select * from _everything",
    "select * from _places",
    "select current_setting('temp_directory')",
    "select getenv('HOME')",
    "select getvariable('x')",
    "select nextval('s')",
    "select write_log('x')",
    "select sleep_ms(1)",
    "select pg_sleep(0.001)",
    "select pg_get_viewdef(1)",
    "select * from pragma_version()",
    "select * from test_all_types()",
    "select * from arrow_scan(1, 2, 3)",
    "select * from secret_frame",
    "select 1 from rollouts at (version => 1), pg_class",
    "select * from pragma_table_info('rollouts')",
    "table pg_class",
    "select * from parquet_metadata('{secret}')",
]


@pytest.mark.parametrize("sql", OUTSIDE)
def test_nothing_outside_is_reached(run, sql, tmp_path):
    """No statement reads a file, a setting, a catalogue, a variable of the program or the network."""
    secret_frame = [("secret",)]  # a replacement scan would find it
    secret = tmp_path / "secret.csv"
    secret.write_text("column0\nsecret\n")
    with pytest.raises(InputError):
        run.sql(sql.format(secret=secret, folder=tmp_path)).fetchall()
    assert secret_frame


@pytest.mark.parametrize("sql", [*OTHER_STATEMENTS, *OUTSIDE])
def test_the_statement_check_suffices_alone(sql, plain, tmp_path):
    """Each statement is refused before it reaches any engine."""
    with pytest.raises(InputError):
        check_statement(sql.format(secret=tmp_path / "secret.csv", folder=tmp_path), plain)


@pytest.fixture(scope="module")
def plain():
    """An engine without any protection."""
    with duckdb.connect() as connection:
        yield connection


@pytest.fixture(scope="module")
def bare(run, plain, tmp_path_factory):
    """The engine without the statement check, and the files around it."""
    compact(run.path)
    found = {
        table: [part.table(table) for part in find_parts(run.path, run.info.id, table)]
        for table in ("rollouts", "scores")
    }
    sandbox = SqlSandbox(tmp_path_factory.mktemp("private"), [run.path / "cache"], EngineLimits())
    yield TableSnapshot([found], [Sessions(())], sandbox), list(run.path.rglob("*"))
    sandbox.close()


@pytest.mark.parametrize("sql", [*OTHER_STATEMENTS, *OUTSIDE])
def test_the_sandbox_suffices_alone(bare, sql, tmp_path):
    """Without the statement check, the engine still reads and writes no file but the parts of the tables."""
    engine, files = bare
    secret = tmp_path / "secret.csv"
    secret.write_text("column0\nhidden words\n")
    watched = [tmp_path, secret, *files]
    before = [place.stat().st_mtime_ns for place in watched]
    cursor = engine.cursor().begin()  # changes of the engine itself are undone for the next
    try:
        given = str(cursor.execute(sql.format(secret=secret, folder=tmp_path)).fetchall())
    except duckdb.Error:
        given = ""
    cursor.close()
    assert "hidden words" not in given
    assert "secret.csv" not in given
    assert [place.stat().st_mtime_ns for place in watched] == before


def test_engine_is_locked(bare):
    """No setting can be changed, so the sandbox cannot be opened."""
    engine, _ = bare
    for setting in ("enable_external_access = true", "lock_configuration = false", "memory_limit = '100GB'"):
        with pytest.raises(duckdb.Error):
            engine.cursor().execute(f"set {setting}")


def test_sandbox_reads_its_folders_only(plain, tmp_path):
    """An engine reads new files of its folders, but nothing through links in them or in place of them."""
    private, cache, other = (tmp_path / name for name in ("private", "cache", "other"))
    for folder in (private, other):
        folder.mkdir()
    (tmp_path / "link").symlink_to(other)
    sandbox = SqlSandbox(private, [cache, tmp_path / "link"], EngineLimits())
    cursor = sandbox.cursor(sandbox.new_schema())
    cache.mkdir()
    for folder in (private, cache, other):
        plain.execute(f"copy (select 1 as n) to '{folder / 'part.parquet'}'")
    (private / "link.parquet").symlink_to(other / "part.parquet")
    for folder in (private, cache):
        assert cursor.execute(f"from '{folder / 'part.parquet'}'").fetchall() == [(1,)]
    for folder in (other, tmp_path / "link", private / ".." / "other"):
        with pytest.raises(duckdb.PermissionException):
            cursor.execute(f"from '{folder / 'part.parquet'}'")
    with pytest.raises(duckdb.PermissionException):
        cursor.execute(f"from '{private / 'link.parquet'}'")
    sandbox.close()


def test_engine_sees_no_variable(bare):
    """A data frame in a variable of the program is not a table."""
    pandas = pytest.importorskip("pandas")
    engine, _ = bare
    secret_frame = pandas.DataFrame({"words": ["hidden words"]})
    with pytest.raises(duckdb.CatalogException):
        engine.cursor().execute("select * from secret_frame")
    assert len(secret_frame) == 1


ALLOWED = [
    "select 1",
    "select 1;",
    "SELECT count(*) FROM Rollouts",
    "from rollouts",
    "values (1), (2)",
    "table rollouts",
    "(select 1)",
    "explain select * from rollouts",
    "EXPLAIN from rollouts",
    "/* why */ explain select 1",
    "with a as (select id from rollouts) select * from a join rollouts using (id)",
    "with recursive r as (select 1 as a union all select a + 1 from r where a < 3) select * from r",
    "with rollouts as (select 1 as id) select * from rollouts",
    "select * from range(3), unnest([1, 2]) as t(x)",
    "select * from generate_series(1, 3)",
    "select * from json_each('[1]')",
    "select 1 union select 2 intersect select 2",
    "select list_transform([1, 2], lambda x: x + 1), [x for x in [1]]",
    "select columns('re.*') from rollouts",
    "select a.id from rollouts a, lateral (select a.id) b",
    "select unnest(tags) from rollouts",
    "select * from rollouts pivot (count(*) for env in ('sums'))",
    "select * from rollouts using sample 1 rows",
    "select row_number() over (order by id) from rollouts qualify row_number() over () = 1",
    "select pg_typeof(1)",
    "select * from (values (1)) t(a)",
    "select reward from rollouts positional join (select 1)",
    "select 'read_text(''/etc/passwd'')' as text",
    "select now(), version(), current_date",
]


@pytest.mark.parametrize("sql", ALLOWED)
def test_select_in_all_its_forms_is_run(run, sql):
    """Every statement that only reads tables is run."""
    assert run.sql(sql).columns


def test_wrong_statement_is_explained(run):
    """The error has the engine's own message, the tables, and similar names."""
    with pytest.raises(InputError, match=r"(?s)syntax error.*The tables are.*rollouts"):
        run.sql("selct 1")
    with pytest.raises(InputError, match=r'(?s)"rewards" not found.*Candidate.*"reward".*The tables are'):
        run.sql("select rewards from rollouts")
    with pytest.raises(InputError, match=r"(?s)no table 'rolouts'.*mean rollouts\?.*The tables are"):
        run.sql("select * from rolouts")
    with pytest.raises(InputError, match="The tables are"):
        run.sql("select 'x'::int").fetchall()


def test_tables_that_are_named_are_known():
    """Only the named tables are read; a WITH query of the same name may still need the table."""
    with duckdb.connect() as connection:
        assert check_statement("select 1", connection).tables == set()
        assert check_statement("select (select count(*) from steps)", connection).tables == {"steps"}
        assert check_statement("with a as (from scores) from a", connection).tables == {"scores"}
        assert check_statement("with runs as (from runs) from runs", connection).tables == {"runs"}


def test_absurd_statements_end_in_an_error(run):
    """Statements of absurd length or depth are refused, and do not crash."""
    for sql in ("select " + "(" * 5000 + "1" + ")" * 5000, "select '" + "x" * 2_000_000 + "'", "select \x00", "\x00"):
        with pytest.raises(InputError):
            run.sql(sql)

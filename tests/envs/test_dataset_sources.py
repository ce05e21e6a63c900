"""Files that hold rows: what is read, and the errors for hostile or damaged files."""

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rolltrace.envs import dataset_sources as sources
from rolltrace.envs.dataset_sources import open_sources
from rolltrace.errors import DataError

pa = pytest.importorskip("pyarrow")  # the core alone is without it
pq = pytest.importorskip("pyarrow.parquet")

pytestmark = pytest.mark.core

SHAPES = Path(__file__).parent / "shapes"


def rows_of(data, split=None):
    return [(number, row) for source in open_sources(data, split) for number, row in source.rows]


def write(path, data):
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


# JSON


def test_a_json_file_is_a_list_or_lines(tmp_path):
    """A JSON file that starts with `[` is a list, any other is lines."""
    assert rows_of(write(tmp_path / "list.json", '\ufeff [{"a": 1},\n {"a": 2}]')) == [(1, {"a": 1}), (2, {"a": 2})]
    assert rows_of(write(tmp_path / "lines.json", '{"a": 1}\n{"a": 2}\n')) == [(1, {"a": 1}), (2, {"a": 2})]
    with pytest.raises(DataError, match=r"broken\.json: expected a JSON list of objects"):
        rows_of(write(tmp_path / "broken.json", '[{"a": 1},'))


def test_a_compressed_file_is_named(tmp_path):
    """A compressed file is refused by name, and not read as text."""
    with pytest.raises(DataError, match="got a compressed file: decompress it first"):
        rows_of(write(tmp_path / "rows.jsonl.gz", b"\x1f\x8b"))


def test_rows_that_are_too_large_are_refused(tmp_path, monkeypatch):
    """The size of each row and of all rows is bounded, and the error has the row's number."""
    monkeypatch.setattr(sources, "MAX_ROW_CHARS", 40)
    monkeypatch.setattr(sources, "MAX_TOTAL_CHARS", 100)
    with pytest.raises(DataError, match=r"a\.jsonl:2: expected a line of at most 40 bytes, got more"):
        rows_of(write(tmp_path / "a.jsonl", '{"a": 1}\n' + json.dumps({"a": "x" * 50})))
    with pytest.raises(DataError, match=r"b\.jsonl:5: expected at most 100 characters in all rows"):
        rows_of(write(tmp_path / "b.jsonl", (json.dumps({"a": "x" * 24}) + "\n") * 6))
    with pytest.raises(DataError, match="list of 1: row 1: expected at most 40 characters in a row"):
        rows_of([{"a": ["x" * 20, {"b": "y" * 21}]}])
    pq.write_table(pa.table({"a": ["x", "y" * 41]}), tmp_path / "c.parquet")
    with pytest.raises(DataError, match=r"c\.parquet: row 2: expected at most 40 characters in a row, got 41"):
        rows_of(tmp_path / "c.parquet")


# CSV


CELLS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(CELLS, CELLS), min_size=1))
def test_csv_gives_back_what_was_written(tmp_path, rows):
    """Cells are read back as written, with quotes, separators and line ends; every cell is text."""
    quoted = ["question,answer", *(",".join(f'"{cell.replace(chr(34), chr(34) * 2)}"' for cell in row) for row in rows)]
    path = write(tmp_path / "own.csv", "\n".join(quoted) + "\n")
    assert [tuple(row.values()) for _, row in rows_of(path)] == rows


def test_csv_by_hand(tmp_path):
    """A byte-order mark, Windows line ends, empty cells, blank lines; a row's number is the line it starts at."""
    text = '\ufeffid,question,answer\r\n007,"two\r\nlines",1.50\r\n\r\nb,,"say ""hi"""\r\n'
    assert rows_of(write(tmp_path / "own.csv", text)) == [
        (2, {"id": "007", "question": "two\r\nlines", "answer": "1.50"}),
        (5, {"id": "b", "question": None, "answer": 'say "hi"'}),
    ]


def test_other_separators(tmp_path):
    """A TSV file has tabs; a CSV file whose first line has semicolons and no comma has semicolons."""
    assert rows_of(write(tmp_path / "own.tsv", "a\tb\n1,5\t2\n")) == [(2, {"a": "1,5", "b": "2"})]
    assert rows_of(write(tmp_path / "own.csv", "a;b\n1,5;2\n")) == [(2, {"a": "1,5", "b": "2"})]


def test_a_long_cell(tmp_path):
    """A cell may be longer than Python's default limit of 128 KB."""
    [(_, row)] = rows_of(write(tmp_path / "own.csv", f"a\n{'x' * 300_000}\n"))
    assert len(row["a"]) == 300_000


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ('a,b\n1,2\n"3,4\n5,6\n', ":3: expected CSV, got a row that cannot be read: unexpected end of data"),
        ('a,b\n1,2\n"3"x,4\n', ":3: expected CSV, got a row that cannot be read"),
        ("a,b\n1,2\n3\n", ":3: expected 2 cells as in the first line, got 1."),
        ('a,b\n"1\n",2\n3,4,5\n', ":4: expected 2 cells as in the first line, got 3."),
        (b"a,b\n1,\xff\n", ":2: expected UTF-8 text, got byte 0xff at byte 3."),
        ("a,a\n1,2\n", ":1: expected a first line of column names, got a name twice."),
    ],
)
def test_bad_csv_is_named_by_line(tmp_path, data, message):
    """Malformed CSV is an error that names the line; nothing is guessed."""
    with pytest.raises(DataError) as caught:
        rows_of(write(tmp_path / "own.csv", data))
    assert f"own.csv{message}" in str(caught.value)


# Parquet


def test_parquet_comes_through(tmp_path):
    """Lists, structs, maps, nulls and numbers are read as Python values; the path adds no columns."""
    folder = tmp_path / "split=train"
    folder.mkdir()
    kinds = pa.schema(
        [
            ("n", pa.int64()), ("list", pa.list_(pa.string())), ("struct", pa.struct([("a b", pa.list_(pa.string()))])),
            ("map", pa.map_(pa.string(), pa.string())), ("deep", pa.list_(pa.struct([("x", pa.list_(pa.int8()))]))),
            ('quo"te', pa.large_string()), ("bytes", pa.binary()),
        ]
    )  # fmt: skip
    row = {
        "n": 2**40, "list": ["a", None], "struct": {"a b": ["x"]}, "map": [("k", "v")], "deep": [{"x": [1, 2]}],
        'quo"te': "é", "bytes": b"\xff",
    }  # fmt: skip
    pq.write_table(pa.Table.from_pylist([row, dict.fromkeys(row)], schema=kinds), folder / "own.parquet")
    (_, first), (_, second) = rows_of(folder / "own.parquet")
    assert first == {**row, "map": {"k": "v"}}
    assert second == dict.fromkeys(row)


def test_parquet_by_its_first_bytes(tmp_path):
    """A Parquet file is recognised by its first bytes, whatever its name is."""
    shutil.copy(SHAPES / "gsm8k.parquet", tmp_path / "data.bin")
    assert len(rows_of(tmp_path / "data.bin")) == 3


@pytest.mark.parametrize("shape", ["text", "list", "struct", "map"])
def test_a_file_that_swells_is_refused_before_it_does(tmp_path, shape):
    """A file of a few kilobytes that expands to 10 GB of text is measured in bounded memory, and refused."""
    count, large = 5_000, "x" * (2 << 20)
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array([large]))
    ends = pa.array(range(count + 1), pa.int32())
    values = {
        "text": lambda: texts,
        "list": lambda: pa.ListArray.from_arrays(ends, texts),
        "struct": lambda: pa.StructArray.from_arrays([texts], ["a"]),
        "map": lambda: pa.MapArray.from_arrays(ends, pa.array(["k"] * count), texts),
    }[shape]()
    pq.write_table(pa.table({"question": values}), tmp_path / "own.parquet", compression="zstd", store_schema=False)
    assert (tmp_path / "own.parquet").stat().st_size < 100_000
    measured, limited = "at most 2147483648 characters in all rows, got 1048", "a Parquet file .* Out of Memory"
    with pytest.raises(DataError, match=rf"own\.parquet: expected ({measured}|{limited})"):
        rows_of(tmp_path / "own.parquet")


@pytest.mark.parametrize("damage", ["cut", "empty", "noise", "text"])
def test_damaged_parquet(tmp_path, damage):
    """The error names the file and its expected format."""
    whole = (SHAPES / "gsm8k.parquet").read_bytes()
    data = {"cut": whole[:-20], "empty": b"", "noise": random.Random(1).randbytes(5000), "text": b"a,b\n1,2\n"}[damage]
    with pytest.raises(DataError, match=r"own\.parquet: expected a Parquet file that can be read, got: "):
        rows_of(write(tmp_path / "own.parquet", data))


# Saved datasets


def saved(tmp_path, name="gsm8k_saved"):
    return Path(shutil.copytree(SHAPES / name, tmp_path / name))


def test_shards_are_read_in_order(tmp_path):
    """Rows are numbered across all files."""
    assert [number for number, _ in rows_of(SHAPES / "gsm8k_saved")] == [1, 2, 3]
    folder = saved(tmp_path)
    (folder / "data-00001-of-00002.arrow").unlink()
    with pytest.raises(DataError, match=r"expected the file that state\.json names, but it is missing"):
        rows_of(folder)


@pytest.mark.parametrize("name", ["../secret.arrow", "/etc/passwd", "..", "", "a\0b"])
def test_a_saved_dataset_does_not_lead_out_of_its_folder(tmp_path, name):
    """File and split names that lead out of the dataset's folder are refused."""
    folder = saved(tmp_path)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    with pytest.raises(DataError, match=r"state\.json: expected names inside its directory, got"):
        rows_of(folder)
    splits = saved(tmp_path, "math_saved")
    (splits / "dataset_dict.json").write_text(json.dumps({"splits": [name]}))
    with pytest.raises(DataError, match=r"dataset_dict\.json: expected names inside its directory, got"):
        rows_of(splits)


@pytest.mark.parametrize("state", ["", "[]", "{}", '{"_data_files": 5}', '{"_data_files": ["a"]}'])
def test_a_damaged_state(tmp_path, state):
    """The error names the damaged file."""
    folder = saved(tmp_path)
    (folder / "state.json").write_text(state)
    with pytest.raises(DataError, match=r"state\.json: expected what `save_to_disk` writes, got"):
        rows_of(folder)


def test_a_folder_of_parquet_files_needs_a_pattern(tmp_path):
    """The error shows the pattern to use."""
    shutil.copy(SHAPES / "gsm8k.parquet", tmp_path / "train-0.parquet")
    with pytest.raises(DataError, match=r"without state\.json: give a pattern, such as data='.*/\*\.parquet'"):
        rows_of(tmp_path)


FUZZ = """
import random, sys
from pathlib import Path
from rolltrace.envs.dataset_sources import open_sources
from rolltrace.errors import DataError
folder, name = Path(sys.argv[1]), sys.argv[2]
file = folder / name if name != "." else folder
whole = file.read_bytes()
chance = random.Random(7)
refused = 0
for _ in range(60):
    data = bytearray(whole)
    for _ in range(chance.randint(1, 4)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    file.write_bytes(data[: chance.choice([len(data), chance.randrange(len(data))])])
    try:
        for source in open_sources(folder):
            for row in source.rows:
                repr(row)
    except DataError:
        refused += 1
print(refused)
"""


@pytest.mark.parametrize("name", ["gsm8k_saved", "chat_saved", "gsm8k.parquet", "chat.parquet"])
def test_damage_is_an_error_and_never_a_crash(tmp_path, name):
    """Bytes that were changed or cut off give rows or a `DataError`, and never crash the process."""
    if name.endswith("_saved"):
        place, file = saved(tmp_path, name), next(SHAPES.joinpath(name).glob("*.arrow")).name
    else:
        place, file = Path(shutil.copy(SHAPES / name, tmp_path / name)), "."
    command = [sys.executable, "-c", FUZZ, str(place), file]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert int(ran.stdout) > 10

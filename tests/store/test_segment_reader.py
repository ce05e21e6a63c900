"""Blocks of bytes to lines: from the front, and from the end."""

from hypothesis import given
from hypothesis import strategies as st

from rolltrace.store import segment_reader
from rolltrace.store.segment_reader import TORN, FileBlock, split_lines, split_lines_backwards

CONTENT = st.lists(st.sampled_from([b"", b"a", b"bc", b"x" * 30, b"\r"]), max_size=12).map(b"\n".join)


@given(CONTENT, st.integers(1, 40), st.integers(1, 40))
def test_backwards_is_the_same_in_reverse(data, first, largest):
    """Whatever a file holds and however much is read at once, both ways give the same lines and the same tear."""
    found = list(
        split_lines_backwards(lambda offset, length: data[offset : offset + length], len(data), first, largest)
    )
    assert found[::-1] == list(split_lines([FileBlock(0, len(data), data)]))
    assert [line for line in found[1:] if line.error == TORN] == []


def test_backwards_reads_no_more_than_is_taken():
    """The last line of a long file costs a look at its end."""
    data = b"some line\n" * 100_000
    asked = []

    def read(offset, length):
        asked.append(length)
        return data[offset : offset + length]

    assert next(split_lines_backwards(read, len(data))).data == b"some line\n"
    assert sum(asked) <= 64 * 1024


def test_backwards_line_without_a_start_ends(monkeypatch):
    """A file without line feeds cannot fill the memory."""
    monkeypatch.setattr(segment_reader, "MAX_LINE_BYTES", 100)
    data = b"x" * 10_000 + b"\n"
    [line] = split_lines_backwards(lambda offset, length: data[offset : offset + length], len(data), first_step=64)
    assert line.data == b""
    assert "at most 100 bytes" in line.error

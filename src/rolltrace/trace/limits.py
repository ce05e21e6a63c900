"""The bounds of what a reader accepts. What is beyond them counts as damage, so that no file can use up its memory."""

MAX_LINE_BYTES = 256 << 20
"""The length of a line, with its line feed."""

MAX_BLOB_BYTES = 256 << 20

MAX_INFO_BYTES = 4 << 20
"""The length of `run.json`."""

MAX_NESTING = 128
"""How deep containers of a free-form place are nested; writers cut at `freeform.MAX_DEPTH`."""

MAX_FRAME_BYTES = 16 << 20
"""The uncompressed length of a zstd frame."""

MAX_FRAMES = 100_000
"""How many frames a compressed segment has."""

MAX_RATIO = 1000
"""A compressed segment unpacks to at most this times its size, plus one line of `MAX_LINE_BYTES`."""

MAX_DAMAGED_LINES = 10_000
"""Reading of a segment ends when it has so many more damaged lines than valid ones."""

"""What the command line puts on a terminal."""

"""Child processes: a pool of workers with limits, and what any owner of child processes needs at a fork and at exit."""

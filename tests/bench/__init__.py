"""Speed and size, ours beside bpftrace's in the same run; `python -m tests.bench`.

`process.py` measures processes, `tracing.py` what tracing costs the traced system and how fast
events come out, `__main__.py` is the list of figures with their budgets, and the table.
"""

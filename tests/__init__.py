"""rawbpf's tests: one folder per room, and the tooling that they run with.

`README.md` beside this file says how to run and to write them.
"""

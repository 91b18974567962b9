"""The `.owlog` file: one rank's records, summaries and facts, in frames lost one by one.

`frames` says what a frame is, `writer` appends them, `reader` reads a file back however damaged it
is, `sinks` are the places that bytes and step lines go to. docs/owlog.md describes the bytes.
"""

"""What was recorded, in the files of other tools: a trace for Perfetto, tables for whatever reads CSV or Parquet.

In: Subjects (one rank on one device each) and what they say together. Out: files, written while the
subjects are read, one after the other, so that memory holds one subject and some thousand rows of
text. Nothing is accounted here: every number is one of the accounting.
"""

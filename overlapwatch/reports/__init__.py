"""Results -> people and scripts: the step line, the text report, the JSON of a report.

In: accounting results (Analyses and their parts). Out: strings and Rich renderables. Nothing here
computes overlap, reads a file or knows where a recording came from. Importing this package imports
nothing: `live` stays cheap for a running job, `text` brings Rich.
"""

"""The report as one page that a browser shows: no network, no other file.

| module     | from                                    | to                                              |
|------------|-----------------------------------------|-------------------------------------------------|
| `drawn`    | Recordings of one input                 | which steps are shown, as `accounting.blocks`   |
| `lanes`    | these, and how the ranks' clocks lie    | the steps' lanes as JSON columns                |
| `sections` | the sections of the text report         | the same sentences and tables as JSON           |
| `graphics` | Analyses                                | numbers that are drawn: parts, bands, steps     |
| `whatif`   | Recordings                              | what is put on two engines                      |
| `page`     | all of these                            | the text of the page                            |

The page computes nothing but places on the screen: each number comes from the accounting, and its
tables are those of the text report. `assets` holds the style sheets and scripts, plain JavaScript
without a build step; uPlot (MIT, see its licence there) draws the curve over the steps.
"""

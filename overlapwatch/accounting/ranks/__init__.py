"""Several ranks in time: who was late, what was waiting and what transfer, where tails came from.

| module    | what it does                                                                   |
|-----------|--------------------------------------------------------------------------------|
| table     | what one rank contributes, small enough to be sent between processes (the map) |
| groups    | which process groups of the ranks are one and the same                         |
| match     | which collectives of the ranks are one and the same                            |
| alignment | how far the ranks' clocks are apart                                            |
| waiting   | each collective on each rank: wait and transfer; the late rank                 |
| lateness  | whether the same rank is late again and again, and why                         |
| overlap   | overlap and exposed time, as recorded and with waiting taken out               |
| tails     | the tails of the steps with waiting told from transfer                         |
| traffic   | bytes and rates by kind and group, waiting taken out                           |
| across    | all of these together: `across_ranks` (the reduce)                             |
"""

"""The waist of the program: the Timeline, and the interval arithmetic on its columns."""

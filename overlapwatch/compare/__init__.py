"""Two settings of one job side by side: whether one is faster, by how much, and how sure that is."""

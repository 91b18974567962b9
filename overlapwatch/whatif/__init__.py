"""What another setting would have done: simulations that start from what was recorded.

Nothing here computes overlap anew; hidden, exposed and tail are those of the accounting.
"""

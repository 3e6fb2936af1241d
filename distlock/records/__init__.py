"""Seats, and changes by a plan, on the records of any backend. It knows no recipe.

seats           what the records of holders and waiters say, and whose turn it is
seat_requests   the way to a seat: the session of the process, a look, the queue, a grant
recipe_records  what recipes do with records: change them by a plan, be a member
shared_backend  semaphores and read/write locks: a backend over the records of another one
"""

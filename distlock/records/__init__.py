"""Seats, and changes by a plan, on the records of any backend. It knows no recipe.

process_session  the session that the records of one process share
seats            what the records of holders and waiters say, and whose turn it is
seat_requests    the way to a seat: a look, the queue, a grant
recipe_records   what recipes do with records: change them by a plan, be a member
shared_backend   semaphores and read/write locks: a backend over the records of another one
"""

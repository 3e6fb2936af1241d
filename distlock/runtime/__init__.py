"""What a process does with locks: who holds them here, who waits, renewal, losses.

manager        the way into a lock and out of it, for threads and tasks
acquiring      the steps from a request to a lease, and of entering again
local_queue    threads and tasks of this process wait here, first come, first served; tells other
               processes how many
hold           one lock held by one owner: its lease, who is inside, and until when it lasts
holds          all holds of the process
renewal        renews leases, and finds and tells losses: ``LeaseRenewer.tell_loss()``
events         log lines, also of outages; signals and ``on_lost`` callbacks
name_template  names such as ``"report:{account_id}"``
"""

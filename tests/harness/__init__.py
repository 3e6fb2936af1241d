"""The servers, the breakable network and the child processes that the other tests stand on."""

"""Django engines that send plain reads of locks to a replica, as proxies that split reads do."""

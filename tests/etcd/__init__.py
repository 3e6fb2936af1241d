"""Locks in etcd: what no other backend has."""

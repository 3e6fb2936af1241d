"""What type checkers know of classes that modules name which must not import them."""

from distlock.locking.multilock import MultiLock as MultiLock
from distlock.recipes.description import Description as Description
from distlock.types.lease import Holder as Holder

"""A queue that serves its owners in turn, so that an owner with many items does not make the others wait."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Hashable, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Turns(Generic[Item]):
    """Items by owner. Owners take turns in order of arrival; the items of one owner keep their order.

    Any thread may put items in. One thread looks at them and takes them.
    """

    def __init__(self) -> None:
        self._items: OrderedDict[Hashable, deque[Item]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return the number of items."""
        with self._lock:
            return sum(map(len, self._items.values()))

    def put(self, owner: Hashable, item: Item) -> None:
        """Append an item of `owner`."""
        with self._lock:
            self._items.setdefault(owner, deque()).append(item)

    def put_back(self, owner: Hashable, item: Item) -> None:
        """Put an item of `owner` before its others."""
        with self._lock:
            self._items.setdefault(owner, deque()).appendleft(item)

    def next_owner(self, shares: Mapping[Hashable, int] = MappingProxyType({})) -> Hashable | None:
        """Return the owner with the smallest share, by default 0, and the first in turn of several; None if empty."""
        with self._lock:
            return min(self._items, key=lambda owner: shares.get(owner, 0), default=None)

    def peek(self, owner: Hashable) -> Item:
        """Return the next item of an owner."""
        return self._items[owner][0]

    def take(self, owner: Hashable) -> Item:
        """Remove and return the next item of an owner, whose next turn comes after all others."""
        with self._lock:
            items = self._items.pop(owner)
            item = items.popleft()
            if items:
                self._items[owner] = items
        return item

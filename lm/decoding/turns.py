"""A queue that serves its owners in turn, so that an owner with many items does not make the others wait."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
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

    def next_owner(self, may: Callable[[Hashable], bool] = lambda owner: True) -> Hashable | None:
        """Return the first owner in turn that `may` accepts; None if it accepts no owner."""
        with self._lock:
            return next((owner for owner in self._items if may(owner)), None)

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

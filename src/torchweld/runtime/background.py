"""One thread for work that nobody waits for. It ends when there is none left."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable

from torchweld.base.events import emit

Job = Callable[[], None]


class Background:
    """Runs jobs one after the other, in the order in which they came."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._jobs: deque[Job] = deque()
        self._busy = False

    def put(self, job: Job) -> None:
        """Run this some time. Errors: none; those of the job are events."""
        with self._changed:
            if not self._busy:
                try:
                    threading.Thread(target=self._work, name="torchweld", daemon=True).start()
                except RuntimeError:  # the interpreter ends, or there are too many threads
                    return
                self._busy = True
            self._jobs.append(job)

    def wait(self, seconds: float = 300.0) -> bool:
        """Wait until nothing is left to do; whether that came about in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._busy, seconds)

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._jobs:
                    self._busy = False
                    self._changed.notify_all()
                    return
                job = self._jobs.popleft()
            try:
                job()
            except Exception as error:
                emit("runtime", "background", f"{type(error).__name__}: {error}", why=str(error))
            del job  # what it holds must not live until the next one comes


BACKGROUND = Background()
os.register_at_fork(after_in_child=BACKGROUND.__init__)  # type: ignore[misc]

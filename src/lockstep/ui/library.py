"""Finds runs below the roots, follows their journals on one thread, and notifies who listens.

The thread goes round: list directories that have changed, read journals that have grown, a slice at
a time, so that a page is answered while a journal of a gigabyte is being read. What runs is looked
at several times a second; what has ended, every few seconds, because it may be resumed.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from lockstep.errors import LockstepError
from lockstep.observe.state import run_state
from lockstep.run_layout import JOURNAL_FILE, experiment_file, experiment_number
from lockstep.ui.model import RunModel
from lockstep.ui.places import Place, Root
from lockstep.ui.search import SearchModel, TrialModel

__all__ = ["Library"]

POLL_S = 0.2
REMOTE_POLL_S = 2.0
ENDED_POLL_S = 5.0
STATE_S = 1.0
"""How often a run that has not ended is asked whether it still runs."""
_SLICE_S = 0.02
_BREATH_S = 0.002
_DEPTH = 2
"""Runs lie in experiments, and these in a root; a root may also be one of them."""
_OPEN_RUNS = 16
"""More than a page that compares runs has."""


class _Watched:
    """A model with the time of its next look."""

    __slots__ = ("due", "model", "seen")

    def __init__(self, model: RunModel) -> None:
        self.model = model
        self.due = 0.0
        self.seen = 0.0


class Library:
    """All runs and experiments below some roots. ``lock`` guards every model.

    Attributes:
        runs: light models of runs that are no trials, by id.
        searches: experiments, by id.
        states: what was last known of each run's state, by id: a word, or a word and a note.
        complete: whether everything was listed once.
    """

    def __init__(self, roots: list[Root]) -> None:
        self.roots = roots
        self.lock = threading.RLock()
        self.runs: dict[str, RunModel] = {}
        self.searches: dict[str, SearchModel] = {}
        self.states: dict[str, str] = {}
        self.version = 0
        self.complete = False
        self._numbers = {id(root): number for number, root in enumerate(roots)}
        self._watched: dict[str, _Watched] = {}
        self._open: OrderedDict[str, _Watched] = OrderedDict()
        """Full models of the runs whose pages were opened last."""
        self._directories: dict[Place, tuple[int, list[Place]]] = {}
        """What was listed: a number that changes with it, and the directories in it."""
        self._listed = 0.0
        self._search_due: dict[str, float] = {}
        self._waiting: list[tuple[SearchModel, TrialModel]] = []
        """Trials whose runs were not read yet."""
        self._live: dict[str, tuple[SearchModel, TrialModel]] = {}
        self._listeners: set[Callable[[], None]] = set()
        self._asleep = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="lockstep-ui", daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def close(self) -> None:
        """Stop. Idempotent."""
        self._closing = True
        self._asleep.set()
        if self._thread.is_alive():
            self._thread.join()

    @contextmanager
    def listening(self, call: Callable[[], None]) -> Iterator[None]:
        """Have ``call`` called, in the library's thread, whenever there is something new."""
        with self.lock:
            self._listeners.add(call)
        try:
            yield
        finally:
            with self.lock:
                self._listeners.discard(call)

    # --------------------------------------------------------------------------- for the views

    def id_of(self, place: Place) -> str:
        """The name of a place in addresses. Only what was found by listing has one."""
        return f"{self._numbers[id(place.root)]}:{place.name}"

    def light(self, run_id: str) -> RunModel | None:
        """The run's light model; None if there is no such run."""
        model = self.runs.get(run_id)
        if model is None:
            search, trial = self.trial(run_id)
            if search is not None and trial is not None:
                model = trial.model or self._read_trial(search, trial)
        return model

    def trial(self, run_id: str) -> tuple[SearchModel | None, TrialModel | None]:
        """The experiment and the trial that a run is of."""
        folder, _, directory = run_id.rpartition("/")
        if not folder:  # an experiment's directory as a root
            number, _, directory = run_id.partition(":")
            folder = f"{number}:"
        for search in self.searches.values():
            if self.id_of(search.place) == folder and directory in search.by_directory:
                return search, search.by_directory[directory]
        return None, None

    def parent(self, model: RunModel) -> tuple[str, RunModel] | None:
        """The run that another was forked from, and its id; None if it is not below the roots."""
        if model.parent is None:
            return None
        for run_id, other in self.runs.items():
            is_it = other.run.get("trial_id") == model.parent.trial_id
            if is_it and other.place != model.place and (found := self.full(run_id)) is not None:
                return run_id, found
        return None

    def full(self, run_id: str) -> RunModel | None:
        """The run's full model, which is read from now on; None if there is no such run."""
        with self.lock:
            watched = self._open.get(run_id)
            if watched is None:
                light = self.light(run_id)
                if light is None:
                    return None
                watched = _Watched(RunModel(light.place, full=True))
                with suppress(LockstepError):
                    watched.model.follow()
                self._open[run_id] = watched
                if light.follower.behind and run_id in self._watched:
                    # Long, and still being read: it is read once, for both.
                    self.runs[run_id] = self._watched[run_id].model = watched.model
                while len(self._open) > _OPEN_RUNS:
                    self._open.popitem(last=False)
                self._asleep.set()
            self._open.move_to_end(run_id)
            return watched.model

    def state_of(self, run_id: str, model: RunModel) -> str:
        """The run's state, looked at now and then; ``"; "`` and a note may follow."""
        if model.damage is not None:
            return "damaged"
        if model.end is not None:
            return model.state
        if run_id not in self.states:
            self.states[run_id] = self._look(model)
        return self.states[run_id]

    # ------------------------------------------------------------------------------ the thread

    def _run(self) -> None:
        while not self._closing:
            self._asleep.clear()
            try:
                busy = self._round()
            except Exception:  # of one damaged run; the pages of all others continue
                traceback.print_exc()
                busy = False
            if not self._closing:
                # Also while there is more to read: a page that waits for the lock gets it.
                self._asleep.wait(_BREATH_S if busy else POLL_S)

    def _round(self) -> bool:
        """Look at everything that is due; whether there is more to read at once."""
        now = time.monotonic()
        news = False
        if now >= self._listed:
            news = self._list()
            self._listed = time.monotonic() + 5 * POLL_S
            self.complete = True
        busy = False
        for read in (self._follow_searches, self._follow_open, self._follow_runs, self._trials):
            changed, more = read(now)
            news |= changed
            busy |= more
        if news:
            with self.lock:
                self.version += 1
                listeners = list(self._listeners)
            for call in listeners:
                call()
        return busy

    def _list(self) -> bool:
        news = False
        pending = [(root.place, 0) for root in self.roots]
        for place, depth in pending:
            if self._closing:
                return news
            known = self._directories.get(place)
            changed = place.changed()
            if known is None or known[0] != changed or changed == -1:
                with self.lock:
                    found, inside = self._look_into(place, depth)
                news |= found
                known = self._directories[place] = (changed, inside)
            pending += [(inner, depth + 1) for inner in known[1]]
        return news

    def _look_into(self, place: Place, depth: int) -> tuple[bool, list[Place]]:
        """Whether there was something new in a directory, and the directories to look into."""
        entries = place.entries()
        names = {name for name, is_directory in entries if not is_directory}
        if JOURNAL_FILE in names and place.exists(JOURNAL_FILE):
            return self._found_run(place), []
        news = False
        numbers = [n for n in map(experiment_number, names) if n is not None]
        if numbers:
            news = self._found_search(place, experiment_file("journal", max(numbers)))
        if depth >= _DEPTH:
            return news, []
        trials = self._trial_directories(place)
        return news, [
            place.child(name)
            for name, is_directory in entries
            if is_directory
            and not name.startswith(".")
            and name not in trials
            # What was found to be a run stays one; its own directories are its checkpoints.
            and self.id_of(place.child(name)) not in self._watched
        ]

    def _trial_directories(self, place: Place) -> set[str]:
        # An experiment's own journal names its trials: listing ten thousand would take long.
        search = self.searches.get(self.id_of(place))
        return set(search.by_directory) if search else set()

    def _found_run(self, place: Place) -> bool:
        run_id = self.id_of(place)
        if run_id in self._watched or self.trial(run_id)[1] is not None:
            return False
        model = RunModel(place, full=False)
        self._watched[run_id] = _Watched(model)
        self.runs[run_id] = model
        return True

    def _found_search(self, place: Place, journal: str) -> bool:
        search_id = self.id_of(place)
        known = self.searches.get(search_id)
        if known is not None and known.journal == journal:
            return False
        search = self.searches[search_id] = SearchModel(place, journal)
        while search.follow() and search.follower.behind:
            pass
        self._take_trials(search)
        return True

    def _follow_searches(self, now: float) -> tuple[bool, bool]:
        news = busy = False
        for search_id, search in list(self.searches.items()):
            if now < self._search_due.get(search_id, 0.0):
                continue
            with self.lock:
                if search.follow():
                    news = True
                    self._take_trials(search)
                if not search.header and not search.place.exists(search.journal):
                    del self.searches[search_id]  # its directory was deleted
                    self._directories.pop(search.place, None)
                    news = True
                    continue
                busy |= search.follower.behind
                ended = search.ended is not None
                self._search_due[search_id] = now + _pause(search.place, ended=ended)
        return news, busy

    def _take_trials(self, search: SearchModel) -> None:
        for trial in search.trials.values():
            run_id = self.id_of(search.place.child(trial.directory))
            self.runs.pop(run_id, None)
            self._watched.pop(run_id, None)
            if trial.model is None and trial.status != "PENDING":
                self._waiting.append((search, trial))
            elif trial.status in ("RUNNING", "PAUSED"):
                self._live[run_id] = (search, trial)

    def _trials(self, now: float) -> tuple[bool, bool]:
        """Read the runs of trials: those that run, and those that nobody has read yet."""
        news = False
        for run_id, (search, trial) in list(self._live.items()):
            with self.lock:
                model = trial.model
                if model is not None and model.follow():
                    search.changed(trial)
                    news = True
                over = trial.status in ("TERMINATED", "ERROR")
                if over and (model is None or not model.follower.behind):
                    del self._live[run_id]
        if not self._waiting:
            return news, False
        until = time.monotonic() + _SLICE_S
        with self.lock:
            while self._waiting and time.monotonic() < until:
                search, trial = self._waiting.pop()
                if trial.model is None:
                    self._read_trial(search, trial)
        return True, bool(self._waiting)

    def _read_trial(self, search: SearchModel, trial: TrialModel) -> RunModel | None:
        place = search.place.child(trial.directory)
        if not place.is_inside() or not place.exists(JOURNAL_FILE):
            return None
        model = RunModel(place, full=False, metric=search.metric)
        with suppress(LockstepError):
            model.follow()
        trial.model = model
        search.changed(trial)
        if trial.status in ("RUNNING", "PAUSED") or model.follower.behind:
            self._live[self.id_of(place)] = (search, trial)
        return model

    def _follow_runs(self, now: float) -> tuple[bool, bool]:
        return self._follow(list(self._watched.items()), now)

    def _follow_open(self, now: float) -> tuple[bool, bool]:
        with self.lock:
            opened = list(self._open.items())
        return self._follow(opened, now)

    def _follow(self, items: list[tuple[str, _Watched]], now: float) -> tuple[bool, bool]:
        news = busy = False
        until = time.monotonic() + 5 * _SLICE_S
        for run_id, watched in items:
            model = watched.model
            if now < watched.due and not model.follower.behind:
                continue
            if time.monotonic() > until:
                return news, True
            with self.lock:
                with suppress(LockstepError):
                    news |= model.follow()
                if not model.run and not model.place.exists(JOURNAL_FILE):
                    news |= self._forget(run_id)  # its directory was deleted
                    continue
                busy |= model.follower.behind
                ended = model.end is not None or model.damage is not None
                watched.due = now + _pause(model.place, ended=ended)
                if not ended and now >= watched.seen + STATE_S:
                    watched.seen = now
                    state = self._look(model)
                    if state != self.states.get(run_id):
                        self.states[run_id] = state
                        model.version += 1
                        news = True
        return news, busy

    def _forget(self, run_id: str) -> bool:
        known = run_id in self.runs
        for models in (self.runs, self._watched, self._open, self.states):
            models.pop(run_id, None)
        return known

    def _look(self, model: RunModel) -> str:
        if not model.run:
            return "starting"
        try:
            return run_state(model.place.storage, model)
        except (LockstepError, OSError, ArithmeticError, LookupError, TypeError, ValueError):
            return "damaged"


def _pause(place: Place, *, ended: bool) -> float:
    if not place.root.storage.is_local:
        return 5 * ENDED_POLL_S if ended else REMOTE_POLL_S
    return ENDED_POLL_S if ended else POLL_S

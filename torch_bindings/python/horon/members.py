"""Groups of some ranks: their members meet in the store of the group, and make a process set.

The other ranks of the job know nothing of it. Each member gives its rank of MPI, and the number
after the highest one that it has given to a group; the first member takes the highest of these.
"""

import hashlib
import json
import logging
import os
import threading
import time

from torch.distributed import PrefixStore

_OUTCOME = "horon/outcome"  # what the first member has decided, or who gave up first
_READERS = "horon/readers"  # how many have read it
_PATIENCE_S = 10  # of a member that is interrupted with a store that does not answer
# Of this process, for all its groups; from native.first_group_number on. The numbers below that are
# left to C++ of the program, which may call horon::add_process_set_among() too.
_next_number = 0


class Meeting:
    """Of the members of a group, in a store where no other ranks have keys. The keys are deleted
    when all have read the outcome, since a later group may have the same ranks. A member that comes
    again before that waits until they are."""

    def __init__(self, store, rank, ranks, timeout_s, call="new_group()"):
        """`rank`: this member's index in `ranks`, which are those of torch."""
        self.store = store
        self.rank = rank
        self.ranks = ranks
        self.timeout_s = timeout_s
        self.call = call          # of torch, for messages
        self.interruption = None  # what has ended this member's wait: Ctrl-C, an alarm, the store
        self._given = [f"horon/{i}" for i in range(len(ranks))]      # by the members
        self._read = [f"horon/read/{i}" for i in range(len(ranks))]  # those who know the outcome

    def outcome_of(self, mine, decide):
        """Returns what decide() returns: the first member calls it with what each member gives, in
        the order of the members. If it raises, or a member does not come or gives up, all that have
        come raise RuntimeError. A member that is interrupted raises its interruption, unless it was
        too late to give up: then it has the outcome too. The values are those of JSON."""
        begin = time.monotonic()
        late = self._wait(begin, self._last_is_over, self._read)
        if late is not None:  # nothing of this member is there
            raise RuntimeError(f"a group of ranks {self.ranks}: the previous call has not ended on "
                               f"all of them: {late}")
        self.store.set(self._given[self.rank], json.dumps(mine))
        proposal = None
        try:
            late = self._wait(begin, self._ready, self._given)
            if late is not None:
                proposal = {"error": late}
            elif self.rank == 0 and self.store.check(self._given):  # else another one has given up
                proposal = self._decision(decide)
        except BaseException as interruption:
            self.interruption = interruption
            proposal = {"error": f"rank {self.ranks[self.rank]} gave up ({interruption!r})"}
        outcome = self._settled(proposal)
        if "error" in outcome:
            if self.interruption is not None:
                raise self.interruption
            raise RuntimeError(f"a group of ranks {self.ranks}: {outcome['error']}")
        return outcome["result"]

    def _settled(self, proposal):
        """The outcome, which is `proposal` if that is not None and the first one. The others wait
        for the proposal, so a thread tells it, which goes on when the main thread is interrupted by
        a signal."""
        outcomes, errors, done = [], [], threading.Event()

        def settle():
            try:
                if proposal is not None:
                    # The first one counts: whoever comes late finds that the others have given up.
                    self.store.compare_set(_OUTCOME, "", json.dumps(proposal))
                outcomes.append(json.loads(self.store.get(_OUTCOME)))
                self._note_read()
            except Exception as error:  # the store is gone, which may be what has ended the wait
                errors.append(error)
            done.set()
        threading.Thread(target=settle, daemon=True).start()
        end = None
        while end is None or time.monotonic() < end:
            try:
                if done.wait(0.25):
                    break
                if self.interruption is not None and end is None:
                    end = time.monotonic() + _PATIENCE_S
            except BaseException as interruption:
                self.interruption = self.interruption or interruption
        if errors or not done.is_set():
            raise self.interruption or errors[0]
        return outcomes[0]

    def _note_read(self):
        self.store.set(self._read[self.rank], "")
        if self.store.add(_READERS, 1) < len(self.ranks):
            return
        # A member whose own key is gone may begin anew, so these keys are deleted last.
        for key in [*self._given, _OUTCOME, _READERS, *self._read]:
            self.store.delete_key(key)

    def _decision(self, decide):
        try:
            return {"result": decide([json.loads(self.store.get(key)) for key in self._given])}
        except Exception as error:
            return {"error": str(error)}

    def _wait(self, begin, ready, keys):
        """Returns None when ready() is true. When the time from `begin` is over: a text of who has
        not come, by `keys` of the members. Asks again and again, so that Ctrl-C is answered."""
        warn_after_s = _stall_warning_s()
        while not ready():
            waited_s = time.monotonic() - begin
            if waited_s >= self.timeout_s:
                return (f"{self._missing(keys)} within {self.timeout_s:g} s, the timeout of the "
                        f"group. Call {self.call} on each member")
            if warn_after_s and waited_s >= warn_after_s:
                logging.getLogger("horon").warning(
                    "%s of ranks %s: %s in %.0f s", self.call, self.ranks,
                    self._missing(keys), waited_s)
                warn_after_s = None
            time.sleep(min(0.25, max(0.0005, waited_s / 8)))
        return None

    def _last_is_over(self):
        return not self.store.check([self._read[self.rank]])

    def _ready(self):
        """There is an outcome; or this is the first member, and all have come."""
        return (self.store.check([_OUTCOME])
                or (self.rank == 0 and self.store.check(self._given)))

    def _missing(self, keys):
        missing = [str(rank) for rank, key in zip(self.ranks, keys)
                   if not self.store.check([key])]
        if not missing:
            return f"rank {self.ranks[0]} has come but not answered"
        if len(missing) == 1:
            return f"rank {missing[0]} has not come"
        return f"ranks {', '.join(missing[:-1])} and {missing[-1]} have not come"


def _stall_warning_s():
    try:
        return float(os.environ.get("HORON_STALL_WARN_S", "10")) or None
    except ValueError:
        return 10.0  # the session has refused it


def make_process_set(store, rank, ranks, timeout_s, call):
    """Makes the process set of the ranks that meet in the store. Each of them calls it; `rank`: its
    index. One thread of the process at a time, as for all calls of torch that make groups."""
    global _next_number
    from horon import native
    # Members find each other by their ranks: the calls of one of them pair with those of the others
    # in order.
    digest = hashlib.sha256(json.dumps(ranks).encode()).hexdigest()[:32]  # stores limit names
    own = PrefixStore(f"horon.{digest}", store)
    meeting = Meeting(own, rank, ranks, timeout_s, call)
    world_ranks, number = meeting.outcome_of([native.rank(), _next_number], _choose)
    _next_number = number + 1
    process_set = native.add_process_set_among(world_ranks, native.first_group_number + number)
    if meeting.interruption is not None:  # the others had begun to make it
        native.leave_process_set(process_set)
        raise meeting.interruption
    return process_set


def _choose(members):
    world_ranks = [world_rank for world_rank, _ in members]
    if any(low >= high for low, high in zip(world_ranks, world_ranks[1:])):
        raise ValueError(f"they are ranks {world_ranks} of MPI, but the backend \"horon\" needs "
                         "ascending ranks of MPI: number the processes as MPI does")
    return world_ranks, max(number for _, number in members)

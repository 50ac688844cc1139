"""Members that make groups of some of the ranks over "horon", each in its time. Groups of two or
more need three ranks."""

import contextlib
import datetime
import signal
import socket
import threading
import time
import types

import pytest
import torch
import torch.distributed as dist

import horon.torch as hvd
from groups_of_some import check, make, make_and_check
from horon import members, native, process_group


@pytest.fixture(scope="module", autouse=True)
def group():
    for _ in range(3):  # rank 0 holds the store, and leaves at once
        dist.init_process_group("horon", timeout=datetime.timedelta(seconds=300))
        dist.destroy_process_group()
    dist.init_process_group("horon")
    yield
    dist.destroy_process_group()


def test_members_come_alone(rank, size):
    """The other ranks are at a collective of all meanwhile, and call nothing."""
    ranks = list(range(1, size))
    if rank in ranks:
        for _ in range(2):  # torch gives both groups the same name
            group = dist.new_group(ranks, use_local_synchronization=True)
            check(group, ranks)
            dist.destroy_process_group(group)
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x[0] == size


def test_members_that_have_made_unlike_numbers_of_groups(rank, size):
    """Torch names a group after that number, so these know the later groups by unlike names."""
    first, rest, every = [0], list(range(size - 1)), list(range(size))
    kept = []
    for ranks in (first, rest, every[-2:], every):
        if rank in ranks:
            kept.append((make(ranks, 60), ranks))
    kept.append((dist.new_group(every), every))
    for group, ranks in kept:
        check(group, ranks)
    for group, _ in kept:
        dist.destroy_process_group(group)


def test_a_member_that_does_not_come(rank, size):
    if size < 3:
        pytest.skip("a group of one rank waits for nobody")
    ranks = [0, size - 1]
    for late in (size - 1, 0):
        if rank in ranks and rank != late:
            with pytest.raises(RuntimeError, match=f"rank {late} has not come within 0.3 s"):
                make(ranks, 0.3)
        hvd.barrier()
        if rank == late:  # the other one has given up
            with pytest.raises(RuntimeError, match=f"rank {late} has not come within"):
                make(ranks, 60)
        hvd.barrier()
        if rank in ranks:
            make_and_check(ranks)


def test_a_member_that_comes_again_before_the_others_have_come_once(rank, size):
    if size < 3:
        pytest.skip("a group of one rank waits for nobody")
    ranks = [0, size - 1]
    for late in (size - 1, 0):
        if rank in ranks and rank != late:
            for _ in range(3):
                begin = time.monotonic()
                with pytest.raises(RuntimeError, match=f"rank {late} has not come within 0.2 s"):
                    make(ranks, 0.2)
                assert time.monotonic() - begin >= 0.2
        hvd.barrier()
        if rank == late:
            with pytest.raises(RuntimeError, match=f"rank {late} has not come within"):
                make(ranks, 60)
        if rank in ranks:  # the one that was early need not know that the other one was refused
            make_and_check(ranks)


def test_the_first_member_comes_after_one_has_given_up_on_another(rank, size):
    if size < 4:
        pytest.skip("a group of three ranks, and one more")
    ranks = [0, 1, size - 1]
    for comes, timeout_s in ((1, 0.2), (0, 60), (size - 1, 60)):
        if rank == comes:
            with pytest.raises(RuntimeError, match=f"ranks 0 and {size - 1} have not come"):
                make(ranks, timeout_s)
        hvd.barrier()
    if rank in ranks:
        make_and_check(ranks)


def test_a_member_is_interrupted_while_it_waits(rank, size, monkeypatch):
    """By Ctrl-C, as soon as it sleeps."""
    if size < 3:
        pytest.skip("a group of one rank waits for nobody")
    ranks = [0, size - 1]
    for early in ranks:
        if rank == early:
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(members.time, "sleep", lambda _: signal.raise_signal(signal.SIGINT))
                make(ranks, 60)
        hvd.barrier()
        if rank in ranks and rank != early:
            with pytest.raises(RuntimeError, match=f"rank {early} gave up.*KeyboardInterrupt"):
                make(ranks, 60)
        if rank in ranks:
            make_and_check(ranks)


def test_a_member_is_interrupted_again_while_it_tells_the_others(rank, size, monkeypatch):
    if size < 3:
        pytest.skip("a group of one rank waits for nobody")
    ranks = [0, size - 1]
    note_read = members.Meeting._note_read
    told = threading.Event()

    def note_read_late(meeting):
        for _ in range(3):  # the thread that waits for this one handles them
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            threading.Event().wait(0.05)
        note_read(meeting)
        told.set()
    if rank == ranks[1]:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(members.time, "sleep", lambda _: signal.raise_signal(signal.SIGINT))
            patch.setattr(members.Meeting, "_note_read", note_read_late)
            make(ranks, 60)
        while not told.is_set():  # on a busy machine a signal may come when make() has ended
            with contextlib.suppress(KeyboardInterrupt):
                told.wait()
    hvd.barrier()
    if rank == ranks[0]:
        with pytest.raises(RuntimeError, match=f"rank {ranks[1]} gave up"):
            make(ranks, 60)
    if rank in ranks:
        make_and_check(ranks)


def test_ranks_that_do_not_ascend():
    options = types.SimpleNamespace(global_ranks_in_group=[1, 0],
                                    timeout=datetime.timedelta(seconds=1))
    with pytest.raises(RuntimeError, match=r"new_group\(\[1, 0\], sort_ranks=False\)"):
        process_group._make(options, None)


def test_the_store_fails_while_a_member_waits(monkeypatch):
    def fail_with(text):
        def fail(_):
            raise dist.DistError(text)
        return fail
    monkeypatch.setattr(members.Meeting, "_ready", fail_with("the wait has failed"))
    monkeypatch.setattr(members.Meeting, "_note_read", fail_with("nobody can be told"))
    with pytest.raises(dist.DistError, match="the wait has failed"):
        members.Meeting(dist.HashStore(), 0, [0, 1], 60).outcome_of(0, len)


def test_an_interrupted_member_does_not_wait_for_ever_for_a_store(monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt
    monkeypatch.setattr(members, "_PATIENCE_S", 0.1)
    monkeypatch.setattr(members.Meeting, "_ready", interrupt)
    answers = threading.Event()
    monkeypatch.setattr(members.Meeting, "_note_read", lambda _: answers.wait())
    with pytest.raises(KeyboardInterrupt):
        members.Meeting(dist.HashStore(), 0, [0, 1], 60).outcome_of(0, len)
    answers.set()


def test_a_host_whose_name_leads_nowhere(monkeypatch):
    def nowhere(*_):
        raise socket.gaierror("no such name")
    monkeypatch.setattr(socket, "getaddrinfo", nowhere)
    monkeypatch.setattr(socket.socket, "connect", lambda *_: None)
    monkeypatch.setattr(socket.socket, "getsockname", lambda _: ("10.1.2.3", 0))
    assert process_group.addresses_of_this_host() == (None, "10.1.2.3")
    monkeypatch.setattr(socket.socket, "connect", nowhere)
    with pytest.raises(RuntimeError, match=f'"{socket.gethostname()}", has no address'):
        process_group.addresses_of_this_host()


@pytest.mark.parametrize("leads_to, taken", [
    ("10.9.8.7", "here"), ("fe80::1%eth0", "here"), ("127.0.1.1", "10.1.2.3"), ("::1", "10.1.2.3"),
    (None, "10.1.2.3")])
def test_a_name_that_leads_elsewhere_on_another_host(monkeypatch, leads_to, taken):
    """As the short names of pods, or 127.0.1.1 in /etc/hosts of each host."""
    def look_up(*_):
        if leads_to is None:
            raise socket.gaierror("no such name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (leads_to, 0))]
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert process_group.host_of_rank_0("here", "10.1.2.3") == taken
    assert process_group.host_of_rank_0("here", None) == "here"
    assert process_group.host_of_rank_0(None, "127.0.0.1") == "127.0.0.1"


def test_a_member_is_interrupted_when_the_others_begin_to_make_the_group(rank, size, monkeypatch):
    if size < 3:
        pytest.skip("a group of one rank waits for nobody")
    ranks = [0, size - 1]

    def interrupt_late(meeting):
        while not meeting.store.check([members._OUTCOME]):
            time.sleep(0.001)
        raise KeyboardInterrupt
    if rank == ranks[1]:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(members.Meeting, "_ready", interrupt_late)
            make(ranks, 60)
    if rank == ranks[0]:
        group = make(ranks, 60)
        with pytest.raises(hvd.HorovodInternalError, match=f"rank {ranks[1]}"):
            dist.all_reduce(torch.ones(2), group=group)
        dist.destroy_process_group(group)


def test_beside_a_set_that_the_program_has_made_in_cpp(rank, size):
    """On rank 0, whose next group is with a rank that is not in it."""
    mine, theirs = [0, 1], [0, size - 1]
    if size < 3:
        pytest.skip("sets of two ranks, and one more")
    made = native.add_process_set_among(mine, 0) if rank in mine else None
    if rank in theirs:
        make_and_check(theirs)
    if made is not None:
        native.leave_process_set(made)


def test_a_timeout_of_centuries(rank, size, set_timeout):
    ranks = list(range(size - 1)) if size > 2 else [rank]
    if rank not in ranks:
        return
    for timeout in (datetime.timedelta.max, datetime.timedelta(days=1000 * 365)):
        group = dist.new_group(ranks, timeout=timeout, use_local_synchronization=True)
        if rank == ranks[-1]:
            time.sleep(0.1)  # nothing fails without it: most likely the others wait by now
        x = torch.ones(2)
        dist.all_reduce(x, group=group, async_op=True).wait(datetime.timedelta(days=1000 * 365))
        dist.barrier(group=group)
        set_timeout(group, datetime.timedelta.max)
        if rank == ranks[-1]:
            time.sleep(0.1)
        dist.all_reduce(x, group=group)
        assert x[0] == len(ranks)**2
        dist.destroy_process_group(group)

"""Base classes of data loaders, as in horovod.data: a subclass has _iterate() and __len__().

    class Loader(AsyncDataLoaderMixin, BaseDataLoader): ...     # the mixin is the first
"""

import atexit
import queue
import threading

_SECONDS_BETWEEN_LOOKS = 0.1  # whether somebody has closed the loader
_SECONDS_FOR_A_BATCH = 10  # at the end of the process, for the one that is being made
_END = object()


class BaseDataLoader:
    """Batches of _iterate(), each as _process_batch() gives it."""

    def __len__(self):
        raise NotImplementedError

    def _iterate(self):
        raise NotImplementedError

    def _process_batch(self, batch):
        return batch

    def __iter__(self):
        for batch in self._iterate():
            yield self._process_batch(batch)


class AsyncDataLoaderMixin:
    """A thread makes up to `async_loader_queue_size` batches before they are asked for; 0: no
    thread does. What _iterate() raises, the loop over the loader raises. Each loop begins anew,
    also after one that was left early; a loop that has not ended then raises RuntimeError."""

    def __init__(self, async_loader_queue_size=64, debug_data_loader=False, *args, **kwargs):
        """debug_data_loader: of Horovod, which prints more then; here it does nothing."""
        self.async_loader_queue_size = async_loader_queue_size
        self._worker = None
        super().__init__(*args, **kwargs)

    def close_async_loader(self):
        """Ends the thread, and a loop that waits for it."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def __iter__(self):
        if self.async_loader_queue_size <= 0:
            yield from super().__iter__()
            return
        if self._worker is not None:
            self._worker.close(is_replaced=True)
        worker = self._worker = _Worker(self._iterate, self.async_loader_queue_size)
        try:
            for batch in worker.batches():
                yield self._process_batch(batch)
        finally:
            worker.close()


class _Worker:
    """One loop over iterate(), in a thread."""

    def __init__(self, iterate, ahead):
        self._iterate = iterate
        self._made = queue.Queue(ahead)  # (batch, what was raised in its place)
        self._closed = threading.Event()
        self._is_replaced = False
        # A daemon: an iterate() that waits for ever does not keep the process alive.
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        # A thread that is within torch when Python ends would end the process by abort().
        atexit.register(self._end)

    def batches(self):
        while not self._closed.is_set():
            try:
                batch, error = self._made.get(timeout=_SECONDS_BETWEEN_LOOKS)
            except queue.Empty:
                continue
            if error is not None:
                raise error
            if batch is _END:
                return
            yield batch
        if self._is_replaced:
            raise RuntimeError("another loop over this loader has begun and ended this one: run "
                               "one loop at a time over a loader")

    def close(self, is_replaced=False):
        self._is_replaced = is_replaced
        self._end(None)

    def _end(self, seconds=_SECONDS_FOR_A_BATCH):
        self._closed.set()
        atexit.unregister(self._end)
        if self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def _run(self):
        try:
            for batch in self._iterate():
                if not self._put(batch):
                    return
            self._put(_END)
        except BaseException as error:
            self._put(None, error)

    def _put(self, batch, error=None):
        """False: nobody wants it any more."""
        while not self._closed.is_set():
            try:
                self._made.put((batch, error), timeout=_SECONDS_BETWEEN_LOOKS)
                return True
            except queue.Full:
                pass
        return False
